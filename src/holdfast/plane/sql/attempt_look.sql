-- Contract: what there is to know about a job before an attempt of it is run: the fence under which it was last handed out,
-- what the worker that has it has last said about itself (NULL where no worker has it, or that worker is forgotten), how often
-- its attempt was begun as far as the scheduler has heard of it, and how often it was nacked after that.
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
