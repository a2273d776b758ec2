-- Contract: `holdfast_renew` sets a new expiry for every lease that still has its token and has not expired. Returns one
-- character for each, in order: '1' renewed, '0' not ours. All of them are one statement and one commit, which is durable
-- when it is reported. An expiry is judged when its row is locked, so a takeover and a renewal exclude each other.

CREATE OR REPLACE FUNCTION {schema}.holdfast_renew(
    p_keys text[], p_tokens text[], p_ttls_us bigint[], p_lock_ms integer
) RETURNS text LANGUAGE plpgsql VOLATILE
SET enable_seqscan TO off SET enable_hashjoin TO off SET enable_mergejoin TO off
SET plan_cache_mode TO force_generic_plan AS $holdfast$
DECLARE
    answers text;
BEGIN
    PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    WITH asked AS (
        SELECT * FROM unnest(p_keys, p_tokens, p_ttls_us) WITH ORDINALITY AS a (key, token, ttl_us, number)
    ), renewed AS (
        UPDATE {schema}.holdfast_lease AS l SET expires_at = clock_timestamp() + a.ttl_us * interval '1 microsecond'
        FROM asked AS a WHERE l.key = a.key AND l.token = a.token AND l.expires_at > clock_timestamp()
        RETURNING l.key, l.token
    )
    SELECT string_agg(CASE WHEN r.key IS NULL THEN '0' ELSE '1' END, '' ORDER BY a.number) INTO answers
    FROM asked AS a LEFT JOIN renewed AS r ON r.key = a.key AND r.token = a.token;
    RETURN coalesce(answers, '');
END
$holdfast$;
