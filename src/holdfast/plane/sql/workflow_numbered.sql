-- Contract: one version of a definition; a tenant's own takes precedence over that of all tenants.
SELECT * FROM plane_workflow WHERE scope IN (:tenant, '*') AND name = :name AND version = :version
ORDER BY CASE WHEN scope = '*' THEN 1 ELSE 0 END LIMIT 1
