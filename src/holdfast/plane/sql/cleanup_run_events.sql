-- Contract: deletes at most `:most` entries of the timeline of a run, and returns one row for each.
DELETE FROM plane_run_event WHERE run = :run AND (version, line) IN (
    SELECT version, line FROM plane_run_event WHERE run = :run ORDER BY version, line LIMIT :most
)
RETURNING line
