"""Advice about TTLs and retry delays from a history. Pure."""
