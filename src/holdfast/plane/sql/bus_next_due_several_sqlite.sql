-- Contract: as `bus_next_due`, of the queues of several subjects, named by a JSON array.
SELECT MIN((
    SELECT MIN(due_ns) FROM plane_message
    WHERE subject = wanted.value AND recipient = :recipient AND state = 1
)) AS due_ns
FROM json_each(:subjects) AS wanted
