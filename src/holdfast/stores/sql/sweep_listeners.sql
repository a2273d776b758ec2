-- Contract: removes waiters that have not said for long that they still wait.
DELETE FROM holdfast_listener WHERE expires_wall_ns <= :wall_ns
