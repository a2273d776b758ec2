-- Contract: outlines of the jobs of the newest dead letters of all tenants.
SELECT {brief}
FROM plane_job WHERE id IN (SELECT job FROM plane_dead_letter ORDER BY at_ns DESC, id DESC LIMIT :most)
