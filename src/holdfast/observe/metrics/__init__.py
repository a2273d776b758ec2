"""Metrics: their table, their samples and their collection."""
