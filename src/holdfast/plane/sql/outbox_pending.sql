-- Contract: how many messages of a queue are staged and not yet taken by the bus.
SELECT COUNT(*) AS number FROM plane_outbox WHERE subject = :subject AND recipient = :recipient
