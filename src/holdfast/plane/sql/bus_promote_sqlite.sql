-- Contract: makes due messages ready: nacked with a delay, staged for later, or claimed by a consumer that is silent.
UPDATE plane_message SET state = 0
WHERE rowid IN (
    SELECT rowid FROM plane_message
    WHERE subject = :subject AND recipient = :recipient AND state = 1 AND due_ns <= :now_ns
    ORDER BY due_ns LIMIT :most
)
