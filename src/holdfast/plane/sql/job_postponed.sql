-- Contract: how many attempts of a job have postponed it: they do not count. Reads the history of this job alone.
SELECT COUNT(*) AS postponed FROM plane_event
WHERE job = :id AND after = 'RETRYING' AND reason LIKE 'postponed: %'
    AND at_ns >= (SELECT created_ns FROM plane_job WHERE id = :id)
