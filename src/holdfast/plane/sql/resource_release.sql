-- Contract: ends what one holder has, and returns it; no row: it holds nothing now. Nobody else is touched.
DELETE FROM plane_resource_lock
WHERE tenant = :tenant AND resource = :resource AND token = :token AND expires_ns > :now_ns
RETURNING *
