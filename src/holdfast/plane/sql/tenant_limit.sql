-- Contract: sets how many jobs of a tenant may be with workers; NULL: the default. Jobs that are with workers stay
-- there.
INSERT INTO plane_tenant (tenant, running, slots) VALUES (:tenant, 0, :slots)
ON CONFLICT (tenant) DO UPDATE SET slots = excluded.slots
RETURNING tenant, running, slots
