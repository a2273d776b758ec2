-- Contract: tenants after a name, in alphabetical order.
SELECT tenant, running, slots FROM plane_tenant WHERE tenant > :after ORDER BY tenant LIMIT :most
