-- Contract: outlines of the newest jobs of one tenant. The tenant is bounded from both sides, as the topic in
-- `job_list_topic`.
SELECT {brief}
FROM plane_job WHERE tenant >= :tenant AND tenant <= :tenant
ORDER BY tenant DESC, created_ns DESC, id DESC LIMIT :most
