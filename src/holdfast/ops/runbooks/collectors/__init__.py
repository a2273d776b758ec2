"""Where runbooks read their facts."""
