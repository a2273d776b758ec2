-- Contract: as `bus_claim`, from the queues of several subjects, named by a JSON array: the highest priority of all of them first,
-- then the oldest. Sorts the ready messages of these subjects; so it is for queues that are kept short, as those of workers are.
UPDATE plane_message SET state = 1, due_ns = :due_ns, deliveries = deliveries + 1
WHERE rowid IN (
    SELECT rowid FROM plane_message
    WHERE subject IN (SELECT value FROM json_each(:subjects)) AND recipient = :recipient AND state = 0
    ORDER BY priority DESC, place LIMIT :most
)
RETURNING *
