-- Contract: as `bus_next_due`, of the queues of several subjects, named by a JSON array.
SELECT MIN((
    SELECT MIN(due_ns) FROM plane_message
    WHERE plane_message.subject = wanted.subject AND recipient = :recipient AND state = 1
)) AS due_ns
FROM json_array_elements_text(CAST(:subjects AS json)) AS wanted (subject)
