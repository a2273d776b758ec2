-- Contract: forced releases of one tenant, newest first, after a cursor (`:at_ns`, `:id`). The tenant is bounded from both
-- sides, see `job_list_topic`.
SELECT * FROM plane_resource_break WHERE tenant >= :tenant AND (tenant, at_ns, id) < (:tenant, :at_ns, :id)
ORDER BY tenant DESC, at_ns DESC, id DESC LIMIT :most
