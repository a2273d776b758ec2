-- Contract: forced releases of all tenants, newest first, after a cursor (`:at_ns`, `:id`).
SELECT * FROM plane_resource_break WHERE (at_ns, id) < (:at_ns, :id) ORDER BY at_ns DESC, id DESC LIMIT :most
