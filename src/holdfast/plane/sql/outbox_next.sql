-- Contract: when the next message of a lane may be published; NULL: there is none.
SELECT MIN(due_ns) AS due_ns FROM plane_outbox WHERE owner = :owner AND due_ns > :now_ns
