-- Contract: claims the first ready messages until `due_ns`, and returns them: highest priority first, then oldest.
-- Skips messages that another transaction is claiming. MATERIALIZED: the limit holds with every plan.
WITH picked AS MATERIALIZED (
    SELECT ctid FROM plane_message
    WHERE subject = :subject AND recipient = :recipient AND state = 0
    ORDER BY priority DESC, place LIMIT :most
    FOR UPDATE SKIP LOCKED
)
UPDATE plane_message AS message SET state = 1, due_ns = :due_ns, deliveries = deliveries + 1
FROM picked WHERE message.ctid = picked.ctid
RETURNING message.*
