-- Contract: removes at most `:most` waiters that have not said for long that they still wait.
DELETE FROM holdfast_listener
WHERE id IN (SELECT id FROM holdfast_listener WHERE expires_wall_ns <= :wall_ns LIMIT :most)
