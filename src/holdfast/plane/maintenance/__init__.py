"""Background work: reconcile, replay, timers, retention, snapshots."""
