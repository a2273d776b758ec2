-- Contract: the dead letter of that id, of one tenant, or of any (NULL): then the newest, should several have used the id.
SELECT * FROM plane_dead_letter WHERE id = :id AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)
ORDER BY at_ns DESC LIMIT 1
