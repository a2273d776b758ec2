-- Contract: notes that a worker has left, and returns it. It is remembered, because its topics are known ones.
UPDATE plane_worker SET draining = 1, capacity = 0, active = 0, at_ns = :at_ns
WHERE worker = :worker
RETURNING *
