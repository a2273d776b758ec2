-- Contract: messages of all lanes that should have been published before `late_ns`, in order.
SELECT * FROM plane_outbox WHERE due_ns <= :late_ns ORDER BY due_ns, place LIMIT :most
