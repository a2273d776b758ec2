-- Contract: takes a resource from all who hold it, or from the one with this fence, and returns them; the slot is held.
DELETE FROM plane_resource_lock
WHERE tenant = :tenant AND resource = :resource AND expires_ns > :now_ns
    AND (CAST(:fence AS BIGINT) IS NULL OR fence = :fence)
RETURNING *
