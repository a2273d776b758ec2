"""Locks that clients take through the HTTP API."""
