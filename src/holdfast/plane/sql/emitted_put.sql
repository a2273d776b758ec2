-- Contract: stores a value that an attempt emitted. A value that is stored already, of a job that does not exist any more, or of an
-- attempt that another one has followed, changes nothing.
INSERT INTO plane_emitted (job, made_ns, fence, number, attempt, at_ns, value)
SELECT :job, :made_ns, :fence, :number, :attempt, :at_ns, :value FROM plane_job
WHERE id = :job AND created_ns = :made_ns AND COALESCE(run_fence, 0) <= :fence
ON CONFLICT (job, made_ns, fence, number) DO NOTHING
