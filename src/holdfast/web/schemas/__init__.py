"""The bodies of the HTTP API."""
