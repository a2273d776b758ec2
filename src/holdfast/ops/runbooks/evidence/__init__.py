"""The facts that runbooks judge."""
