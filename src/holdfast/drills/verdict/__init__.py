"""Verdicts about the records of a drill."""
