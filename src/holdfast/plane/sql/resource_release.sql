-- Contract: removes one holder and returns it. No row: it is not a current holder. Other holders are not affected.
DELETE FROM plane_resource_lock
WHERE tenant = :tenant AND resource = :resource AND token = :token AND expires_ns > :now_ns
RETURNING *
