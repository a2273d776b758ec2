-- Contract: sets a new expiry for one holder and returns it. No row: it is not a current holder. Others are not affected.
-- The expiry always changes, so it distinguishes requests with the same token (see resource_undo).
UPDATE plane_resource_lock
SET expires_ns = CASE WHEN expires_ns = :expires_ns THEN expires_ns + 1 ELSE :expires_ns END
WHERE tenant = :tenant AND resource = :resource AND token = :token AND expires_ns > :now_ns
RETURNING *
