-- Contract: the jobs of the newest dead letters of one tenant, without what their users put into them.
SELECT {brief}
FROM plane_job WHERE tenant = :tenant
    AND id IN (SELECT job FROM plane_dead_letter WHERE tenant = :tenant ORDER BY at_ns DESC, id DESC LIMIT :most)
