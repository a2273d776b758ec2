-- Contract: at most $4 living leases whose key is in [$1, $2) and begins with $3, by key. Reads only.
SELECT key, owner, fence, family, (extract(epoch FROM granted_at) * 1000000)::bigint,
    (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint, left(token, 6),
    (SELECT count(*) FROM {schema}.holdfast_waiter AS w WHERE w.key = l.key AND w.expires_at > clock_timestamp())
FROM {schema}.holdfast_lease AS l
WHERE key >= $1 AND key < $2 AND starts_with(key, $3) AND expires_at > clock_timestamp() ORDER BY key LIMIT $4
