-- Contract: as `bus_promote`, for the queues of several subjects, named by a JSON array.
UPDATE plane_message SET state = 0
WHERE rowid IN (
    SELECT rowid FROM plane_message
    WHERE subject IN (SELECT value FROM json_each(:subjects)) AND recipient = :recipient AND state = 1
        AND due_ns <= :now_ns
    ORDER BY due_ns LIMIT :most
)
