-- Contract: the facts for the staleness check of an attempt: the fence of its newest assignment; the last heartbeat of
-- its worker (NULL: no worker has the job, or its row was deleted); how many starts the scheduler has recorded; and how
-- many of them were nacked.
SELECT job.created_ns, job.state, job.attempt, job.run_fence, worker.at_ns, worker.draining, (
    SELECT event.fence FROM plane_event AS event WHERE event.job = job.id AND event.after = 'DISPATCHED'
    ORDER BY event.version DESC, event.step DESC LIMIT 1
) AS sent_fence, (
    SELECT COUNT(*) FROM plane_event AS event
    WHERE event.job = job.id AND event.after = 'RUNNING' AND event.attempt = job.attempt
) AS begun, COALESCE((
    SELECT kept.failures FROM plane_failure AS kept
    WHERE kept.id = job.id || ':' || job.created_ns || ':' || job.attempt AND kept.recipient = 'given back'
), 0) AS given_back
FROM plane_job AS job LEFT JOIN plane_worker AS worker ON worker.worker = job.worker
WHERE job.id = :id
