"""Leases for ordinary, blocking code. The public names are in `holdfast`."""
