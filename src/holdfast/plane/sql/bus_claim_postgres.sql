-- Contract: claims the foremost ready messages until `due_ns`, and returns them: the highest priority first, then the oldest.
-- Those that another transaction is about to claim are passed over. MATERIALIZED: the limit holds whatever the plan.
WITH picked AS MATERIALIZED (
    SELECT ctid FROM plane_message
    WHERE subject = :subject AND recipient = :recipient AND state = 0
    ORDER BY priority DESC, place LIMIT :most
    FOR UPDATE SKIP LOCKED
)
UPDATE plane_message AS message SET state = 1, due_ns = :due_ns, deliveries = deliveries + 1
FROM picked WHERE message.ctid = picked.ctid
RETURNING message.*
