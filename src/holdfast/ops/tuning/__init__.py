"""Advice on TTLs and retry delays from recorded history."""
