"""Guarded rows: the statements and steps below the SQL guards."""
