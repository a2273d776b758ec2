-- Contract: holders of the resources of all tenants, or of those with one name, by tenant, resource and grant, after a cursor
-- (`:tenant`, `:resource`, `:fence`).
SELECT * FROM plane_resource_lock
WHERE (tenant, resource, fence) > (:tenant, :resource, :fence) AND expires_ns > :now_ns
    AND (CAST(:only AS TEXT) IS NULL OR resource = :only)
ORDER BY tenant, resource, fence LIMIT :most
