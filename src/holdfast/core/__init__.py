"""Every decision Holdfast takes, as pure functions and values: no clock, no chance, no I/O, no threads."""
