-- Contract: compare, and let the key expire at `:expires_ns`, or when it would have anyway, whichever is sooner. Until
-- then it matches no token, and outlives the process that had it. Returns addresses as `release.sql` does (waiters
-- learn the new time when they ask again); no row: not ours, or it had expired.
UPDATE holdfast_lease SET
    token = '',
    process = '',
    expires_ns = CASE WHEN clock = :clock THEN min(expires_ns, :expires_ns) ELSE :expires_ns END,
    expires_wall_ns = min(expires_wall_ns, :expires_wall_ns),
    clock = :clock
WHERE key = :key AND token = :token
  AND CASE WHEN clock = :clock THEN expires_ns > :now_ns ELSE expires_wall_ns > :wall_ns END
RETURNING (
    SELECT group_concat(address, ' ') FROM (
        SELECT address FROM holdfast_listener
        WHERE key = :key AND place = :place AND expires_wall_ns > :wall_ns
        ORDER BY address IS NOT (SELECT address FROM holdfast_ticket WHERE key = :key ORDER BY id LIMIT 1), id
        LIMIT 4
    )
)
