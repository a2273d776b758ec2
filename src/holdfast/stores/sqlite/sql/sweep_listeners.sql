-- Contract: removes at most `:most` waiters whose registration has expired.
DELETE FROM holdfast_listener
WHERE id IN (SELECT id FROM holdfast_listener WHERE expires_wall_ns <= :wall_ns LIMIT :most)
