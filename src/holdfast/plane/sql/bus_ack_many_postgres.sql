-- Contract: as `bus_ack`, for many messages, all in one statement; `rows` is a JSON array of objects.
UPDATE plane_message AS message SET state = 2, due_ns = row.due_ns, body = ''
FROM json_to_recordset(CAST(:rows AS json)) AS row (id TEXT, recipient TEXT, deliveries BIGINT, due_ns BIGINT)
WHERE message.id = row.id AND message.recipient = row.recipient AND message.deliveries = row.deliveries
    AND message.state <> 2
RETURNING 1 AS done
