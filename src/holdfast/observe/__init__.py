"""What can be seen of leases and of a plane from outside: metrics, and a ledger of what happened."""
