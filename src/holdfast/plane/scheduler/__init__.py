"""From a pending job to an assignment: queues, fair share, placement, dispatch."""
