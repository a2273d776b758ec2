-- Contract: deletes at most `:most` dead letters from before a time, oldest first, and returns their ids.
DELETE FROM plane_dead_letter
WHERE (id, tenant) IN (
    SELECT id, tenant FROM plane_dead_letter WHERE at_ns < :before_ns ORDER BY at_ns, id LIMIT :most
)
RETURNING id
