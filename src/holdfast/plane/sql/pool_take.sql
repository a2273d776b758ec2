-- Contract: takes one of a pool's places; no row: there is none left. `:capacity` NULL: as many as it likes.
UPDATE plane_pool SET running = running + 1
WHERE pool = :pool AND (CAST(:capacity AS BIGINT) IS NULL OR running < :capacity)
RETURNING running
