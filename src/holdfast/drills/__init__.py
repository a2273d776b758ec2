"""Drills: deliberate failures of real processes and a real store, with a verdict at the end. See docs/drills.md.

`catalog` lists the drills, `runner` runs one, `verdict` judges its history, `report` renders the result.
"""
