-- Contract: what there is to know about a job before an attempt of it is run: the fence under which it was last handed out,
-- and what the worker that has it has last said about itself; NULL where nobody has it, or that worker is forgotten.
SELECT job.created_ns, job.state, job.attempt, job.run_fence, worker.at_ns, worker.draining, (
    SELECT event.fence FROM plane_event AS event WHERE event.job = job.id AND event.after = 'DISPATCHED'
    ORDER BY event.version DESC, event.step DESC LIMIT 1
) AS sent_fence
FROM plane_job AS job LEFT JOIN plane_worker AS worker ON worker.worker = job.worker
WHERE job.id = :id
