-- Contract: notes that the dead letter of one job is tried again as another; no row: it was already, or does not exist.
UPDATE plane_dead_letter SET retried_as = :job
WHERE id = :id AND tenant = :tenant AND made_ns = :made_ns AND retried_as IS NULL
RETURNING id
