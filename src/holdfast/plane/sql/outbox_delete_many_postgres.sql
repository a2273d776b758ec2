-- Contract: a bus has taken these messages, all in one statement; `rows` is a JSON array of objects.
DELETE FROM plane_outbox AS box
USING json_to_recordset(CAST(:rows AS json)) AS row (id TEXT, recipient TEXT)
WHERE box.id = row.id AND box.recipient = row.recipient
RETURNING 1 AS done
