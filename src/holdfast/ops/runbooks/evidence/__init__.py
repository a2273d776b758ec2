"""Facts that runbooks judge."""
