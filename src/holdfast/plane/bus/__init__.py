"""Message buses of the control plane: the port, delivery rules, outbox."""
