-- Contract: a page of the schedules that have to be decided by a time, those that waited longest first, after a cursor. One with a
-- queued due time is left out while its last job has not finished and no other due time has come.
SELECT tenant, name, submit_ns FROM plane_schedule
WHERE submit_ns IS NOT NULL AND submit_ns <= :now_ns AND (submit_ns, tenant, name) > (:submit_ns, :tenant, :name)
    AND (submit_ns > 0 OR next_ns <= :now_ns OR NOT EXISTS (
        SELECT 1 FROM plane_job WHERE plane_job.id = plane_schedule.last_job
            AND state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')))
ORDER BY submit_ns, tenant, name LIMIT :most
