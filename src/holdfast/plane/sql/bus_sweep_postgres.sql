-- Contract: deletes some messages that were finished long ago; returns one row for each.
WITH picked AS MATERIALIZED (
    SELECT ctid FROM plane_message WHERE state = 2 AND due_ns <= :now_ns ORDER BY due_ns LIMIT :most
    FOR UPDATE SKIP LOCKED
)
DELETE FROM plane_message AS message USING picked WHERE message.ctid = picked.ctid RETURNING 1 AS gone
