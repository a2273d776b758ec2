"""Middleware for every HTTP request."""
