-- Contract: runs that wait for approval and were not written since `:until_ns`, oldest write first, after a cursor. The
-- condition is that of the index plane_run_waiting, so it reads no other rows.
SELECT id, risk, updated_ns FROM plane_run
WHERE status = 'waiting' AND (updated_ns, id) > (:updated_ns, :id) AND updated_ns <= :until_ns
ORDER BY updated_ns, id LIMIT :most
