"""Leases in a Postgres database."""
