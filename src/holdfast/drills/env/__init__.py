"""The environment of a drill: servers, processes, faults."""
