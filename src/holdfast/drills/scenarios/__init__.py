"""The scenarios: one module or more for each drill."""
