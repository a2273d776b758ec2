-- Contract: `holdfast_acquire` grants a free key to a token, with a fence above every earlier one, in one transaction.
--
-- Granted: `r_fence` is the fence. A token that holds the key already gets the same fence again, with a new expiry.
-- Busy: `r_fence` is NULL; `r_owner` and `r_left_us` describe the holder (NULL: unknown, or only the queue is in the
-- way), `r_ahead` is the number of tickets ahead. The lease is unchanged. A waiter with a ticket or a listener is in the
-- queue when the transaction commits, and no release of the key falls in between.
--
-- The order of locks is the same everywhere: the fence counter of the key, then the lease. A holder is judged only under
-- the lock of the counter, by a statement that begins after that lock was granted. An expired lease that another
-- transaction keeps locked (see `condition.sql`) is busy until that transaction ends.
-- `p_lock_ms` bounds every wait for a lock. A grant is durable when it is reported, whatever the default of the server.

CREATE OR REPLACE FUNCTION {schema}.holdfast_acquire(
    p_key text, p_token text, p_owner text, p_family text, p_ttl_us bigint, p_lock_ms integer,
    p_ticket text, p_ticket_us bigint, p_channel text, p_listener text, p_listen_us bigint,
    OUT r_fence bigint, OUT r_owner text, OUT r_left_us bigint, OUT r_ahead integer
) LANGUAGE plpgsql VOLATILE SET enable_seqscan TO off SET plan_cache_mode TO force_generic_plan AS $holdfast$
DECLARE
    held {schema}.holdfast_lease%ROWTYPE;
    granted bigint;
    queues boolean := p_ticket <> '' OR p_listener <> '';
    free boolean;
BEGIN
    PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    r_ahead := 0;
    SELECT * INTO held FROM {schema}.holdfast_lease WHERE key = p_key;
    free := NOT FOUND OR held.expires_at <= clock_timestamp() OR held.token = p_token;
    IF NOT free AND queues THEN
        SELECT * INTO held FROM {schema}.holdfast_lease WHERE key = p_key FOR KEY SHARE;
        free := NOT FOUND OR held.expires_at <= clock_timestamp() OR held.token = p_token;
    END IF;
    IF free THEN
        granted := {schema}.holdfast_next_fence(p_key, p_token);
        IF p_ticket <> '' AND (held.token IS NULL OR held.token <> p_token) THEN
            r_ahead := {schema}.holdfast_enqueue(p_key, p_ticket, p_ticket_us, p_channel, p_listener, p_listen_us);
            IF r_ahead > 0 THEN
                PERFORM {schema}.holdfast_wake(p_key), set_config('synchronous_commit', 'off', true);
                RETURN;
            END IF;
        END IF;
        SELECT * INTO held FROM {schema}.holdfast_lease WHERE key = p_key FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            free := held.expires_at <= clock_timestamp();
            IF held.token = p_token AND NOT free THEN
                free := true;
                granted := held.fence;
            END IF;
            IF free THEN
                UPDATE {schema}.holdfast_lease SET
                    token = p_token, fence = granted, owner = p_owner, family = p_family,
                    granted_at = CASE WHEN fence = granted THEN granted_at ELSE clock_timestamp() END,
                    expires_at = clock_timestamp() + p_ttl_us * interval '1 microsecond'
                WHERE key = p_key;
            END IF;
        ELSE
            INSERT INTO {schema}.holdfast_lease (key, token, fence, owner, family, granted_at, expires_at)
            VALUES (p_key, p_token, granted, p_owner, p_family, clock_timestamp(),
                clock_timestamp() + p_ttl_us * interval '1 microsecond')
            ON CONFLICT (key) DO NOTHING;
            free := FOUND;
            IF NOT free THEN
                SELECT * INTO held FROM {schema}.holdfast_lease WHERE key = p_key;
            END IF;
        END IF;
    END IF;
    IF free THEN
        IF queues THEN
            DELETE FROM {schema}.holdfast_waiter WHERE key = p_key AND name IN (p_ticket, p_listener);
        END IF;
        IF current_setting('synchronous_commit') = 'off' THEN
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;
        r_fence := granted;
        RETURN;
    END IF;
    IF queues THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        r_ahead := {schema}.holdfast_enqueue(p_key, p_ticket, p_ticket_us, p_channel, p_listener, p_listen_us);
    END IF;
    r_owner := held.owner;
    r_left_us := (extract(epoch FROM held.expires_at - clock_timestamp()) * 1000000)::bigint;
    IF r_left_us <= 0 THEN
        r_left_us := NULL;
    END IF;
END
$holdfast$;

-- `holdfast_acquire_many` does the same for some keys without tickets, in the order of their counters, so that two
-- callers never wait for each other. One row for each key; `r_number` is its position, from 1.
CREATE OR REPLACE FUNCTION {schema}.holdfast_acquire_many(
    p_keys text[], p_tokens text[], p_owners text[], p_families text[], p_ttls_us bigint[], p_lock_ms integer
) RETURNS TABLE (r_number bigint, r_fence bigint, r_owner text, r_left_us bigint)
LANGUAGE plpgsql VOLATILE AS $holdfast$
DECLARE
    ask record;
    answer record;
BEGIN
    FOR ask IN
        SELECT * FROM unnest(p_keys, p_tokens, p_owners, p_families, p_ttls_us)
            WITH ORDINALITY AS a (key, token, owner, family, ttl_us, number)
        ORDER BY {schema}.holdfast_slot(a.key), a.number
    LOOP
        SELECT * INTO answer FROM {schema}.holdfast_acquire(
            ask.key, ask.token, ask.owner, ask.family, ask.ttl_us, p_lock_ms, '', 0, '', '', 0);
        r_number := ask.number;
        r_fence := answer.r_fence;
        r_owner := answer.r_owner;
        r_left_us := answer.r_left_us;
        RETURN NEXT;
    END LOOP;
END
$holdfast$;
