-- Contract: what there is to know about a job before an attempt of it is run, and what the worker that has it has last said
-- about itself; NULL where nobody has it, or that worker is forgotten.
SELECT job.created_ns, job.state, job.attempt, job.run_fence, worker.at_ns, worker.draining
FROM plane_job AS job LEFT JOIN plane_worker AS worker ON worker.worker = job.worker
WHERE job.id = :id
