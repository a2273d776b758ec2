-- Contract: state, version and last progress of some jobs, named by a JSON array of ids.
SELECT job.id, job.tenant, job.state, job.version, progress.at_ns AS progress_ns FROM plane_job AS job
LEFT JOIN plane_progress AS progress ON progress.job = job.id AND progress.made_ns = job.created_ns
WHERE job.id IN (SELECT value FROM json_each(:ids))
