-- Contract: one row for each of `:owned` (key, token, fence, as JSON) whose lease still stands: its token has the key,
-- and its time is not over. It locks those leases until the transaction ends, as `condition.sql` does: until then no
-- other caller is granted their keys, and no release takes effect. Renewals go on. For transactions of the plane.
SELECT lease.key FROM {schema}.holdfast_lease AS lease
JOIN jsonb_to_recordset(CAST(:owned AS jsonb)) AS owned (key text, token text, fence bigint)
    ON lease.key = owned.key AND lease.token = owned.token AND lease.fence = owned.fence
WHERE lease.expires_at > clock_timestamp()
ORDER BY lease.key
FOR KEY SHARE OF lease
