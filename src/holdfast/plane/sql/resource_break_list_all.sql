-- Contract: what operators took away, of all tenants, newest first, after a place (`:at_ns`, `:id`) in that order.
SELECT * FROM plane_resource_break WHERE (at_ns, id) < (:at_ns, :id) ORDER BY at_ns DESC, id DESC LIMIT :most
