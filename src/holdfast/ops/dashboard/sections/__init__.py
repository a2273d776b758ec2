"""The rows of panels of the dashboard."""
