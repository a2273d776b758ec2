"""The message bus on NATS JetStream."""
