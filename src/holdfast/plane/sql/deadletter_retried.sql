-- Contract: records that the dead letter of one job was retried as another job; no row: it was retried before, or does
-- not exist.
UPDATE plane_dead_letter SET retried_as = :job
WHERE id = :id AND tenant = :tenant AND made_ns = :made_ns AND retried_as IS NULL
RETURNING id
