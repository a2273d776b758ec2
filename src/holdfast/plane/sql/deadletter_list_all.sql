-- Contract: dead letters of all tenants, newest first, after a place (`:at_ns`, `:id`) in that order.
SELECT * FROM plane_dead_letter WHERE (at_ns, id) < (:at_ns, :id) ORDER BY at_ns DESC, id DESC LIMIT :most
