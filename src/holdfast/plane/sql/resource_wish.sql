-- Contract: notes, or notes anew, that somebody waits to have a resource alone.
INSERT INTO plane_resource_wish (tenant, resource, owner, slot, until_ns)
VALUES (:tenant, :resource, :owner, :slot, :until_ns)
ON CONFLICT (tenant, resource, owner) DO UPDATE SET until_ns = excluded.until_ns
