-- Contract: the rows of some keys, a JSON array, alive or not; the reader judges.
SELECT key, owner, clock, process, expires_ns, expires_wall_ns FROM holdfast_lease
WHERE key IN (SELECT value FROM json_each(:keys))
