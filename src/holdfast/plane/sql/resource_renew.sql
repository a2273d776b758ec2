-- Contract: sets the expiry of one holder anew, and returns it; no row: it holds nothing now. Nobody else is touched.
-- The expiry is never the same as before, so that it tells one ask with a token from the next (see resource_undo).
UPDATE plane_resource_lock
SET expires_ns = CASE WHEN expires_ns = :expires_ns THEN expires_ns + 1 ELSE :expires_ns END
WHERE tenant = :tenant AND resource = :resource AND token = :token AND expires_ns > :now_ns
RETURNING *
