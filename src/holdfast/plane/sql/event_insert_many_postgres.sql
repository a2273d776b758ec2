-- Contract: inserts entries of histories in one statement; `rows` is a JSON array of objects.
INSERT INTO plane_event (
    job, version, step, at_ns, before, after, attempt, fence, actor, reason, traceback
)
SELECT
    row.job, row.version, row.step, row.at_ns, row.before, row.after, row.attempt, row.fence, row.actor,
    row.reason, row.traceback
FROM json_to_recordset(CAST(:rows AS json)) AS row (
    job TEXT, version BIGINT, step BIGINT, at_ns BIGINT, before TEXT, after TEXT, attempt BIGINT, fence BIGINT,
    actor TEXT, reason TEXT, traceback TEXT
)
RETURNING 1 AS done
