"""The alert rules by subject."""
