-- Contract: one approval, with the state of its job; NULL: that is not stored any more.
SELECT plane_approval.*, plane_job.state AS job_state
FROM plane_approval LEFT JOIN plane_job ON plane_job.id = plane_approval.job
WHERE plane_approval.job = :job
