"""One process of a control plane: its components, health, metrics."""
