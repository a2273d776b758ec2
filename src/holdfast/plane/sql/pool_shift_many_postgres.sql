-- Contract: takes (or, below zero, gives back) places of some pools, locked in the order of their names; `rows` is a JSON array
-- of objects.
WITH held AS MATERIALIZED (
    SELECT counted.pool, row.shift FROM plane_pool AS counted
    JOIN json_to_recordset(CAST(:rows AS json)) AS row (name TEXT, shift BIGINT) ON row.name = counted.pool
    ORDER BY counted.pool FOR UPDATE OF counted
)
UPDATE plane_pool AS counted SET running = counted.running + held.shift
FROM held WHERE held.pool = counted.pool
RETURNING 1 AS done
