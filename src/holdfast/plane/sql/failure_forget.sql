-- Contract: the message is done.
DELETE FROM plane_failure WHERE id = :id AND recipient = :recipient
