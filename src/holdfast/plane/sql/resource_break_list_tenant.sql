-- Contract: what operators took away from one tenant, newest first, after a place (`:at_ns`, `:id`) in that order.
-- The tenant is bounded from both sides, as the topic in `job_list_topic` is.
SELECT * FROM plane_resource_break WHERE tenant >= :tenant AND (tenant, at_ns, id) < (:tenant, :at_ns, :id)
ORDER BY tenant DESC, at_ns DESC, id DESC LIMIT :most
