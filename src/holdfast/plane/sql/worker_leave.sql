-- Contract: records that a worker has left, and returns it. The row stays, because the topics of the worker stay known.
UPDATE plane_worker SET draining = 1, capacity = 0, active = 0, at_ns = :at_ns
WHERE worker = :worker
RETURNING *
