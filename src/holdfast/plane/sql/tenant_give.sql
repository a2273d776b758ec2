-- Contract: gives one of a tenant's slots back.
UPDATE plane_tenant SET running = running - 1 WHERE tenant = :tenant
