-- Contract: removes all holders of a resource, or the one with this fence, and returns them. The transaction has locked the
-- slot.
DELETE FROM plane_resource_lock
WHERE tenant = :tenant AND resource = :resource AND expires_ns > :now_ns
    AND (CAST(:fence AS BIGINT) IS NULL OR fence = :fence)
RETURNING *
