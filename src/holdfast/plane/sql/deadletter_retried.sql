-- Contract: notes that a dead letter is tried again as another job; no row: it was already, or does not exist.
UPDATE plane_dead_letter SET retried_as = :job WHERE id = :id AND retried_as IS NULL
RETURNING id
