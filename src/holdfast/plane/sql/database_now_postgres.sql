-- Contract: the current time by the clock of the database.
SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000000 AS BIGINT) AS now_ns
