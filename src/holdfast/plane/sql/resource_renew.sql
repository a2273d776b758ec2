-- Contract: sets the expiry of one holder anew, and returns it; no row: it holds nothing now. Nobody else is touched.
UPDATE plane_resource_lock SET expires_ns = :expires_ns
WHERE tenant = :tenant AND resource = :resource AND token = :token AND expires_ns > :now_ns
RETURNING *
