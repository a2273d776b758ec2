-- Contract: the timeline of a run, oldest first, after a given entry.
SELECT * FROM plane_run_event
WHERE run = :run AND (version > :version OR (version = :version AND line > :line))
ORDER BY version, line LIMIT :most
