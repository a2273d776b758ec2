"""Collectors: the functions that gather facts for runbooks."""
