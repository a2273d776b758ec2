-- Contract: waits until no other session creates or migrates these tables, and excludes them until the transaction ends.
-- Creates the schema if it does not exist: in an existing one, the right to create schemas is not needed.
SELECT pg_advisory_xact_lock(1213156420, hashtext({text}));
DO $holdfast$
BEGIN
    IF to_regnamespace({text}) IS NULL THEN
        CREATE SCHEMA {schema};
    END IF;
END
$holdfast$;
