-- Contract: how often a message has failed; no row: never.
SELECT failures FROM plane_failure WHERE id = :id AND recipient = :recipient
