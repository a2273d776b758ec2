"""`holdfast up` and `holdfast worker`: long-lived processes."""
