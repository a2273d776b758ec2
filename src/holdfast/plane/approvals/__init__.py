"""Approvals of gated steps and jobs: rules, rows, service."""
