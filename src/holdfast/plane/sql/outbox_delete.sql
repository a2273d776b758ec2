-- Contract: a bus has taken the message.
DELETE FROM plane_outbox WHERE id = :id AND recipient = :recipient
