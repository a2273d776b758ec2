"""One module for each runbook."""
