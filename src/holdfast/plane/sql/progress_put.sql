-- Contract: stores the progress of an attempt. Progress of an older job with the same id, or with a lower fence, does
-- not replace it.
INSERT INTO plane_progress (job, made_ns, attempt, fence, at_ns, fraction, note)
VALUES (:job, :made_ns, :attempt, :fence, :at_ns, :fraction, :note)
ON CONFLICT (job) DO UPDATE SET
    made_ns = excluded.made_ns, attempt = excluded.attempt, fence = excluded.fence, at_ns = excluded.at_ns,
    fraction = excluded.fraction, note = excluded.note
WHERE excluded.made_ns > plane_progress.made_ns
    OR (excluded.made_ns = plane_progress.made_ns AND excluded.fence >= plane_progress.fence)
