-- Contract: what should have been published before `late_ns`, in whichever lane, in order.
SELECT * FROM plane_outbox WHERE due_ns <= :late_ns ORDER BY due_ns, place LIMIT :most
