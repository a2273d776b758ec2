-- Contract: deletes the oldest dead letters of a tenant beyond the newest `:keep`, at most `:most` of them, and returns
-- their ids.
DELETE FROM plane_dead_letter
WHERE tenant = :tenant AND id IN (
    SELECT id FROM plane_dead_letter
    WHERE tenant = :tenant AND (at_ns, id) <= (
        SELECT at_ns, id FROM plane_dead_letter WHERE tenant = :tenant ORDER BY at_ns DESC, id DESC LIMIT 1 OFFSET :keep
    )
    ORDER BY at_ns, id LIMIT :most
)
RETURNING id
