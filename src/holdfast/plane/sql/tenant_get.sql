-- Contract: the counts and the limit of one tenant.
SELECT tenant, running, slots FROM plane_tenant WHERE tenant = :tenant
