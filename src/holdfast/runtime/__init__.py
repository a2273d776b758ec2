"""Threads, asyncio, clocks and random numbers of the lease library, which core and flows must not use directly."""
