"""A simulated control plane: its processes, database, load, faults and checks."""
