-- Contract: some jobs, named by a JSON array of ids, for a transaction that is going to write them. There is one writer.
SELECT * FROM plane_job WHERE id IN (SELECT value FROM json_each(:ids))
