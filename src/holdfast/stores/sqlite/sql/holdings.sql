-- Contract: at most `:limit` leases whose key lies in [`:first`, `:last`), by key, dead ones included; the reader judges.
-- A waiter of a fair lock has a ticket and may listen too, so the larger number counts.
SELECT key, owner, fence, family, granted_wall_ns, substr(token, 1, 6), max(
    (SELECT count(*) FROM holdfast_ticket AS waiter WHERE waiter.key = lease.key
        AND CASE WHEN clock = :clock THEN expires_ns > :now_ns ELSE expires_wall_ns > :wall_ns END),
    (SELECT count(*) FROM holdfast_listener AS waiter WHERE waiter.key = lease.key AND expires_wall_ns > :wall_ns)
), clock, process, expires_ns, expires_wall_ns
FROM holdfast_lease AS lease WHERE key >= :first AND key < :last ORDER BY key LIMIT :limit
