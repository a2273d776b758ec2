-- Contract: forgets one dead letter of a tenant, or of any; no row: there is none.
DELETE FROM plane_dead_letter WHERE id = :id AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant) RETURNING id
