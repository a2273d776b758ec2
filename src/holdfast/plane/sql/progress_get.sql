-- Contract: the progress that was last stored for the job with this id that was made at this time; no row: none was.
SELECT attempt, fence, at_ns, fraction, note FROM plane_progress WHERE job = :job AND made_ns = :made_ns
