"""Incidents on real processes and servers: each is named by `holdfast why`, by an alert, and with its next command."""
