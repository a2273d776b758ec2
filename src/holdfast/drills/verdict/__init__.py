"""Verdicts over what a drill recorded."""
