"""Leases on NATS JetStream."""
