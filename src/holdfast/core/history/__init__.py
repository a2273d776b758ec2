"""Events of leases, what they prove and what they contradict. Pure."""
