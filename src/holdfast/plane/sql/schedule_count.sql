-- Contract: the number of schedules of a tenant.
SELECT COUNT(*) AS schedules FROM plane_schedule WHERE tenant = :tenant
