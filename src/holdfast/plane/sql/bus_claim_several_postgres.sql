-- Contract: as `bus_claim`, from the queues of several subjects, named by a JSON array: the highest priority of all of them first,
-- then the oldest. Sorts the ready messages of these subjects; so it is for queues that are kept short, as those of workers are.
WITH picked AS MATERIALIZED (
    SELECT ctid FROM plane_message
    WHERE subject = ANY (ARRAY(SELECT json_array_elements_text(CAST(:subjects AS json)))) AND recipient = :recipient
        AND state = 0
    ORDER BY priority DESC, place LIMIT :most
    FOR UPDATE SKIP LOCKED
)
UPDATE plane_message AS message SET state = 1, due_ns = :due_ns, deliveries = deliveries + 1
FROM picked WHERE message.ctid = picked.ctid
RETURNING message.*
