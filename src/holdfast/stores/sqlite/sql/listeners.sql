-- Contract: the addresses of a few waiters at `:key`, in the order of `release.sql`, as one text; NULL: none.
SELECT group_concat(address, ' ') FROM (
    SELECT address FROM holdfast_listener
    WHERE key = :key AND place = :place AND expires_wall_ns > :wall_ns
    ORDER BY address IS NOT (SELECT address FROM holdfast_ticket WHERE key = :key ORDER BY id LIMIT 1), id
    LIMIT 4
)
