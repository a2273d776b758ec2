"""Error policies and escalation at run time."""
