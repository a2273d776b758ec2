-- Contract: a page of the schedules of one tenant, by name, after a cursor.
SELECT * FROM plane_schedule WHERE tenant = :tenant AND name > :name ORDER BY name LIMIT :most
