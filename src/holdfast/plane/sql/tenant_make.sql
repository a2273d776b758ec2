-- Contract: makes the row of a tenant, if it has none.
INSERT INTO plane_tenant (tenant, running) VALUES (:tenant, 0) ON CONFLICT (tenant) DO NOTHING
