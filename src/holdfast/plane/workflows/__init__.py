"""Workflows: definitions, the engine that advances runs, and its store."""
