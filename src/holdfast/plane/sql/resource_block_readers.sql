-- Contract: a waiting writer blocks new readers of a resource until `:until_ns`.
INSERT INTO plane_resource_wish (tenant, resource, owner, slot, until_ns)
VALUES (:tenant, :resource, :owner, :slot, :until_ns)
ON CONFLICT (tenant, resource, owner) DO UPDATE SET until_ns = excluded.until_ns
