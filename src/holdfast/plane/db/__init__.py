"""Databases of the control plane: the port, its two engines, and what they share."""
