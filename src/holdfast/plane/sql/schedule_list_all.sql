-- Contract: a page of the schedules of all tenants, by tenant and name, after a cursor.
SELECT * FROM plane_schedule WHERE (tenant, name) > (:tenant, :name) ORDER BY tenant, name LIMIT :most
