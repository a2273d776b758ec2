-- Contract: deletes one dead letter of a tenant; no row: it does not exist.
DELETE FROM plane_dead_letter WHERE id = :id AND tenant = :tenant RETURNING id
