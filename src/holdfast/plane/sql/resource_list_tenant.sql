-- Contract: holders of a tenant's resources, or of one of them, by resource and grant, after a cursor (`:resource`, `:fence`).
SELECT * FROM plane_resource_lock
WHERE tenant = :tenant AND (resource, fence) > (:resource, :fence) AND expires_ns > :now_ns
    AND (CAST(:only AS TEXT) IS NULL OR resource = :only)
ORDER BY resource, fence LIMIT :most
