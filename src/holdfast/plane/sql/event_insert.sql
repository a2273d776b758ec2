-- Contract: appends one entry to the history of a job.
INSERT INTO plane_event (job, version, step, at_ns, before, after, attempt, fence, actor, reason, traceback)
VALUES (:job, :version, :step, :at_ns, :before, :after, :attempt, :fence, :actor, :reason, :traceback)
