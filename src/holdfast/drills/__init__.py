"""Drills: failures on purpose, on real processes and a real store, with a verdict at the end. See docs/drills.md.

`catalogue` has every drill, `running` runs one, `judging` says what is to be said of what it saw, `report` shows it.
"""
