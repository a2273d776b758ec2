-- Contract: takes (or, below zero, gives back) slots of some tenants, locked in the order of their names; `rows` is a JSON array
-- of objects.
WITH held AS MATERIALIZED (
    SELECT counted.tenant, row.shift FROM plane_tenant AS counted
    JOIN json_to_recordset(CAST(:rows AS json)) AS row (name TEXT, shift BIGINT) ON row.name = counted.tenant
    ORDER BY counted.tenant FOR UPDATE OF counted
)
UPDATE plane_tenant AS counted SET running = counted.running + held.shift
FROM held WHERE held.tenant = counted.tenant
RETURNING 1 AS done
