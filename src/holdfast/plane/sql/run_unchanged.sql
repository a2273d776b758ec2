-- Contract: unfinished runs that were not written since `:until_ns`, oldest write first. A run that waits for approval is
-- included only if it was due before `:until_ns` as well. Reads only such runs, through their indexes.
SELECT id, updated_ns, wake_ns FROM (
    SELECT * FROM (
        SELECT id, updated_ns, wake_ns FROM plane_run
        WHERE status IN ('pending', 'running') AND updated_ns <= :until_ns
        ORDER BY updated_ns, id LIMIT :most
    ) AS moving
    UNION ALL
    SELECT * FROM (
        SELECT id, updated_ns, wake_ns FROM plane_run
        WHERE wake_ns IS NOT NULL AND wake_ns <= :until_ns AND status = 'waiting' AND updated_ns <= :until_ns
        ORDER BY wake_ns, id LIMIT :most
    ) AS late
) AS unmoved
ORDER BY updated_ns, id LIMIT :most
