-- Contract: `holdfast_release` compares and deletes, and notifies one waiter. True: the lease was this token's and had not
-- expired. With `p_keep_us` > 0 the key is kept for so long, or until its expiry if that is sooner, and matches no token.
--
-- The commit is not flushed to disk before it is reported: a crash of the server can undo it, and then the key is free
-- when the lease expires. `holdfast_release_many` does the same for some keys, one character for each as in `renew.sql`.
-- `holdfast_force_release` takes a key from its holder, raises the fence and writes an audit record, durably; no row: the
-- key was not held. Its order of locks is that of `acquire.sql`.

CREATE OR REPLACE FUNCTION {schema}.holdfast_release(p_key text, p_token text, p_keep_us bigint, p_lock_ms integer)
RETURNS boolean LANGUAGE plpgsql VOLATILE
SET enable_seqscan TO off SET plan_cache_mode TO force_generic_plan AS $holdfast$
DECLARE
    living boolean;
BEGIN
    PERFORM set_config('lock_timeout', p_lock_ms::text, true), set_config('synchronous_commit', 'off', true);
    IF p_keep_us > 0 THEN
        UPDATE {schema}.holdfast_lease SET
            token = '', expires_at = least(expires_at, clock_timestamp() + p_keep_us * interval '1 microsecond')
        WHERE key = p_key AND token = p_token AND expires_at > clock_timestamp();
        living := FOUND;
    ELSE
        DELETE FROM {schema}.holdfast_lease WHERE key = p_key AND token = p_token
        RETURNING expires_at > clock_timestamp() INTO living;
    END IF;
    IF living IS NOT NULL THEN
        PERFORM {schema}.holdfast_wake(p_key);
    END IF;
    RETURN coalesce(living, false);
END
$holdfast$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_release_many(p_keys text[], p_tokens text[], p_lock_ms integer)
RETURNS text LANGUAGE plpgsql VOLATILE AS $holdfast$
DECLARE
    each record;
    answers text[] := array_fill('0'::text, ARRAY[cardinality(p_keys)]);
BEGIN
    FOR each IN
        SELECT * FROM unnest(p_keys, p_tokens) WITH ORDINALITY AS a (key, token, number) ORDER BY a.key, a.number
    LOOP
        IF {schema}.holdfast_release(each.key, each.token, 0, p_lock_ms) THEN
            answers[each.number] := '1';
        END IF;
    END LOOP;
    RETURN array_to_string(answers, '');
END
$holdfast$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_force_release(
    p_key text, p_actor text, p_reason text, p_secret text, p_lock_ms integer
) RETURNS SETOF {schema}.holdfast_audit LANGUAGE plpgsql VOLATILE SET enable_seqscan TO off AS $holdfast$
DECLARE
    held {schema}.holdfast_lease%ROWTYPE;
    raised bigint;
BEGIN
    PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    IF NOT EXISTS (SELECT FROM {schema}.holdfast_lease WHERE key = p_key AND expires_at > clock_timestamp()) THEN
        RETURN;
    END IF;
    raised := {schema}.holdfast_next_fence(p_key, p_secret);
    DELETE FROM {schema}.holdfast_lease WHERE key = p_key AND expires_at > clock_timestamp() RETURNING * INTO held;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM {schema}.holdfast_wake(p_key);
    RETURN QUERY INSERT INTO {schema}.holdfast_audit
        (at, action, key, actor, reason, previous_owner, previous_fence, fence)
        VALUES (clock_timestamp(), 'force_release', p_key, p_actor, p_reason, held.owner, held.fence, raised)
        RETURNING *;
END
$holdfast$;
