-- Contract: outlines of the jobs of the newest dead letters of one tenant.
SELECT {brief}
FROM plane_job WHERE tenant = :tenant
    AND id IN (SELECT job FROM plane_dead_letter WHERE tenant = :tenant ORDER BY at_ns DESC, id DESC LIMIT :most)
