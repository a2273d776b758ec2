"""Resource locks, which clients acquire through the HTTP API."""
