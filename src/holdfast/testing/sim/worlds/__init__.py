"""Simulated worlds of programs that use leases, one profile per kind."""
