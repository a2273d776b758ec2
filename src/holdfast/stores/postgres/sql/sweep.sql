-- Contract: `holdfast_sweep` removes expired leases among the next `p_most` keys behind `p_after`, and expired waiters, and
-- returns the key behind which the next sweep begins ('': at the first). It waits for no lock. Fence counters stay.

CREATE OR REPLACE FUNCTION {schema}.holdfast_sweep(p_after text, p_most integer) RETURNS text
LANGUAGE plpgsql VOLATILE SET enable_seqscan TO off AS $holdfast$
DECLARE
    last text;
    seen integer;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    SELECT max(key), count(*) INTO last, seen FROM (
        SELECT key FROM {schema}.holdfast_lease WHERE key > p_after ORDER BY key LIMIT p_most) AS r;
    DELETE FROM {schema}.holdfast_lease WHERE key = ANY (ARRAY(
        SELECT key FROM {schema}.holdfast_lease
        WHERE key > p_after AND key <= last AND expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED));
    DELETE FROM {schema}.holdfast_waiter WHERE id = ANY (ARRAY(
        SELECT id FROM {schema}.holdfast_waiter WHERE expires_at <= clock_timestamp() LIMIT p_most FOR UPDATE SKIP LOCKED));
    RETURN CASE WHEN seen < p_most THEN '' ELSE last END;
END
$holdfast$;
