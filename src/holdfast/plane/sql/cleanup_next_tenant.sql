-- Contract: the first tenant after another, in alphabetical order, that has a dead letter.
SELECT tenant FROM plane_dead_letter WHERE tenant > :after ORDER BY tenant LIMIT 1
