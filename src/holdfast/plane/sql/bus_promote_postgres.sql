-- Contract: makes messages ready whose time has come: nacked with a delay, staged for later, or claimed by a consumer
-- that was not heard of again. What another transaction is changing is left to it.
WITH picked AS MATERIALIZED (
    SELECT ctid FROM plane_message
    WHERE subject = :subject AND recipient = :recipient AND state = 1 AND due_ns <= :now_ns
    ORDER BY due_ns LIMIT :most
    FOR UPDATE SKIP LOCKED
)
UPDATE plane_message AS message SET state = 0 FROM picked WHERE message.ctid = picked.ctid
