"""Schedules: jobs that the plane submits at due times."""
