-- Contract: one dead letter.
SELECT * FROM plane_dead_letter WHERE id = :id
