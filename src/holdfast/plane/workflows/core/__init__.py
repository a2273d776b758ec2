"""Decisions about runs and definitions. Pure."""
