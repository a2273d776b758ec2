"""The locks that the control plane takes, by family."""
