-- Contract: claims the foremost ready messages until `due_ns`, and returns them: the highest priority first, then the oldest.
UPDATE plane_message SET state = 1, due_ns = :due_ns, deliveries = deliveries + 1
WHERE rowid IN (
    SELECT rowid FROM plane_message
    WHERE subject = :subject AND recipient = :recipient AND state = 0
    ORDER BY priority DESC, place LIMIT :most
)
RETURNING *
