-- Contract: takes slots of some pools (below zero: frees them), locked in the order of their names; `rows` is a JSON
-- array of objects. Returns one row for each that was written: a missing one would have exceeded `most`.
WITH held AS MATERIALIZED (
    SELECT counted.pool, row.shift, row.most FROM plane_pool AS counted
    JOIN json_to_recordset(CAST(:rows AS json)) AS row (name TEXT, shift BIGINT, most BIGINT) ON row.name = counted.pool
    ORDER BY counted.pool FOR UPDATE OF counted
)
UPDATE plane_pool AS counted SET running = counted.running + held.shift
FROM held WHERE held.pool = counted.pool
    AND (held.shift <= 0 OR held.most IS NULL OR counted.running + held.shift <= held.most)
RETURNING 1 AS done
