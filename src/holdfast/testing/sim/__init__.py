"""The simulator: the real leases and the real plane in virtual time, with faults drawn from a seed."""
