-- Contract: as `bus_promote`, for the queues of several subjects, named by a JSON array.
WITH picked AS MATERIALIZED (
    SELECT ctid FROM plane_message
    WHERE subject = ANY (ARRAY(SELECT json_array_elements_text(CAST(:subjects AS json)))) AND recipient = :recipient
        AND state = 1 AND due_ns <= :now_ns
    ORDER BY due_ns LIMIT :most
    FOR UPDATE SKIP LOCKED
)
UPDATE plane_message AS message SET state = 0 FROM picked WHERE message.ctid = picked.ctid
