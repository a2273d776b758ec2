-- Contract: as `bus_insert`, for many messages, all in one statement; `rows` is a JSON array of objects.
INSERT INTO plane_message
    (id, recipient, subject, body, message_key, fence_key, fence, priority, not_before_ns, first_ns, place,
     state, due_ns, deliveries, failures, excused)
SELECT
    row.id, row.recipient, row.subject, row.body, row.message_key, row.fence_key, row.fence, row.priority,
    row.not_before_ns, row.first_ns, row.place, row.state, row.not_before_ns, 0, 0, 0
FROM json_to_recordset(CAST(:rows AS json)) AS row (
    id TEXT, recipient TEXT, subject TEXT, body TEXT, message_key TEXT, fence_key TEXT, fence BIGINT,
    priority BIGINT, not_before_ns BIGINT, first_ns BIGINT, place BIGINT, state BIGINT
)
ON CONFLICT (id, recipient) DO NOTHING
RETURNING 1 AS done
