-- Contract: makes due messages ready: nacked with a delay, staged for later, or claimed by a consumer that is silent.
-- Skips rows that another transaction is changing.
WITH picked AS MATERIALIZED (
    SELECT ctid FROM plane_message
    WHERE subject = :subject AND recipient = :recipient AND state = 1 AND due_ns <= :now_ns
    ORDER BY due_ns LIMIT :most
    FOR UPDATE SKIP LOCKED
)
UPDATE plane_message AS message SET state = 0 FROM picked WHERE message.ctid = picked.ctid
