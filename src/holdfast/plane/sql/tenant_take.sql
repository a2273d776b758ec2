-- Contract: takes one of a tenant's slots; no row: it has none left. `:slots` NULL: as many as it likes.
UPDATE plane_tenant SET running = running + 1
WHERE tenant = :tenant AND (COALESCE(slots, :slots) IS NULL OR running < COALESCE(slots, :slots))
RETURNING running
