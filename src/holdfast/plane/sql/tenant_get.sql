-- Contract: what is known of one tenant.
SELECT tenant, running, slots FROM plane_tenant WHERE tenant = :tenant
