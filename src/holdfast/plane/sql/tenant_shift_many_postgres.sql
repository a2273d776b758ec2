-- Contract: takes slots of some tenants (below zero: frees them), locked in the order of their names; `rows` is a JSON
-- array of objects. Returns one row for each that was written: a missing one does not exist, or would have exceeded its
-- limit: its own, or else `most`.
WITH held AS MATERIALIZED (
    SELECT counted.tenant, row.shift, row.most FROM plane_tenant AS counted
    JOIN json_to_recordset(CAST(:rows AS json)) AS row (name TEXT, shift BIGINT, most BIGINT) ON row.name = counted.tenant
    ORDER BY counted.tenant FOR UPDATE OF counted
)
UPDATE plane_tenant AS counted SET running = counted.running + held.shift
FROM held WHERE held.tenant = counted.tenant
    AND (
        held.shift <= 0 OR COALESCE(counted.slots, held.most) IS NULL
        OR counted.running + held.shift <= COALESCE(counted.slots, held.most)
    )
RETURNING 1 AS done
