-- Contract: forgets one dead letter of a tenant; no row: there is none.
DELETE FROM plane_dead_letter WHERE id = :id AND tenant = :tenant RETURNING id
