-- Contract: messages of one lane that may be published, in order.
SELECT * FROM plane_outbox WHERE owner = :owner AND due_ns <= :now_ns ORDER BY due_ns, place LIMIT :most
