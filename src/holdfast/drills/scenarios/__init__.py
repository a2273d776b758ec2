"""One module for each drill."""
