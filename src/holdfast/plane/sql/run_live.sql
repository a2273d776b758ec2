-- Contract: pending or running runs that were not written since `:until_ns`, oldest write first, after a cursor. The condition is
-- that of the index plane_run_moving, so it reads no other rows.
SELECT id, risk, updated_ns FROM plane_run
WHERE status IN ('pending', 'running') AND (updated_ns, id) > (:updated_ns, :id) AND updated_ns <= :until_ns
ORDER BY updated_ns, id LIMIT :most
