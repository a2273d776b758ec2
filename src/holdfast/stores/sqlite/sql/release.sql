-- Contract: compare and delete. Returns what was deleted (so that the caller can detect an expired lease) and the
-- addresses of a few waiters, the process of the head of a fair queue first, the longest waiting next; no row: not
-- ours.
DELETE FROM holdfast_lease WHERE key = :key AND token = :token
RETURNING clock, expires_ns, expires_wall_ns, (
    SELECT group_concat(address, ' ') FROM (
        SELECT address FROM holdfast_listener
        WHERE key = :key AND place = :place AND expires_wall_ns > :wall_ns
        ORDER BY address IS NOT (SELECT address FROM holdfast_ticket WHERE key = :key ORDER BY id LIMIT 1), id
        LIMIT 4
    )
)
