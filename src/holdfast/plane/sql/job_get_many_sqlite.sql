-- Contract: some jobs, named by a JSON array of ids.
SELECT * FROM plane_job WHERE id IN (SELECT value FROM json_each(:ids))
