"""The registered workers."""
