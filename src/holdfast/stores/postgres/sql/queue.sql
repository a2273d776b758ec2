-- Contract: the queue of one key.
--
-- `holdfast_enqueue` adds a waiter or extends its time, removes expired ones, and returns how many living tickets are
-- ahead of this ticket (0 for a waiter without one). A waiter that returns after its expiry goes to the end. The caller
-- holds a lock on the lease, or on the fence counter, so that no release of the key is under way.
-- `holdfast_wake` notifies one waiter: the head of the tickets first, then the one that has waited longest. The
-- notification is delivered when the transaction commits, and uses up the registration; a ticket keeps its position.
-- Called after the lease was removed, in the same transaction.

CREATE OR REPLACE FUNCTION {schema}.holdfast_enqueue(
    p_key text, p_ticket text, p_ticket_us bigint, p_channel text, p_listener text, p_listen_us bigint
) RETURNS integer LANGUAGE plpgsql VOLATILE SET enable_seqscan TO off AS $holdfast$
DECLARE
    place bigint;
BEGIN
    DELETE FROM {schema}.holdfast_waiter WHERE id = ANY (ARRAY(
        SELECT id FROM {schema}.holdfast_waiter WHERE key = p_key AND expires_at <= clock_timestamp()
        FOR UPDATE SKIP LOCKED));
    INSERT INTO {schema}.holdfast_waiter (key, name, fair, channel, listener, expires_at)
    VALUES (p_key, CASE p_ticket WHEN '' THEN p_listener ELSE p_ticket END, p_ticket <> '', p_channel, p_listener,
        clock_timestamp() + CASE p_ticket WHEN '' THEN p_listen_us ELSE p_ticket_us END * interval '1 microsecond')
    ON CONFLICT (key, name) DO UPDATE SET
        channel = excluded.channel, listener = excluded.listener, expires_at = excluded.expires_at
    RETURNING id INTO place;
    IF p_ticket = '' THEN
        RETURN 0;
    END IF;
    RETURN (SELECT count(*) FROM {schema}.holdfast_waiter
        WHERE key = p_key AND fair AND id < place AND expires_at > clock_timestamp());
END
$holdfast$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_wake(p_key text) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan TO off AS $holdfast$
DECLARE
    next_one {schema}.holdfast_waiter%ROWTYPE;
BEGIN
    SELECT w.* INTO next_one FROM {schema}.holdfast_waiter AS w
    WHERE w.key = p_key AND w.channel <> '' AND w.expires_at > clock_timestamp()
        AND (NOT w.fair OR w.id = (SELECT min(f.id) FROM {schema}.holdfast_waiter AS f
            WHERE f.key = p_key AND f.fair AND f.expires_at > clock_timestamp()))
    ORDER BY w.fair DESC, w.id LIMIT 1 FOR UPDATE OF w SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF next_one.fair THEN
        UPDATE {schema}.holdfast_waiter SET channel = '' WHERE id = next_one.id;
    ELSE
        DELETE FROM {schema}.holdfast_waiter WHERE id = next_one.id;
    END IF;
    PERFORM pg_notify(next_one.channel, next_one.listener);
END
$holdfast$;

-- `holdfast_listen` adds a waiter that has not asked for the key. True: the key is free, and the waiter was not added.
CREATE OR REPLACE FUNCTION {schema}.holdfast_listen(
    p_key text, p_channel text, p_listener text, p_listen_us bigint, p_lock_ms integer
) RETURNS boolean LANGUAGE plpgsql VOLATILE SET enable_seqscan TO off AS $holdfast$
BEGIN
    PERFORM set_config('lock_timeout', p_lock_ms::text, true), set_config('synchronous_commit', 'off', true);
    PERFORM 1 FROM {schema}.holdfast_lease WHERE key = p_key AND expires_at > clock_timestamp() FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN true;
    END IF;
    PERFORM {schema}.holdfast_enqueue(p_key, '', 0, p_channel, p_listener, p_listen_us);
    RETURN false;
END
$holdfast$;

-- `holdfast_leave` removes a waiter, by its listener or its ticket. If the waiter had been notified (`p_notified`, or its
-- row is gone) or had a ticket, and the key is free, the next one is notified instead. Returns whether it was there.
CREATE OR REPLACE FUNCTION {schema}.holdfast_leave(p_key text, p_name text, p_ticket boolean, p_lock_ms integer)
RETURNS boolean LANGUAGE plpgsql VOLATILE SET enable_seqscan TO off AS $holdfast$
DECLARE
    removed boolean;
BEGIN
    PERFORM set_config('lock_timeout', p_lock_ms::text, true), set_config('synchronous_commit', 'off', true);
    DELETE FROM {schema}.holdfast_waiter WHERE key = p_key AND name = p_name;
    removed := FOUND;
    IF removed = p_ticket AND NOT EXISTS (
        SELECT FROM {schema}.holdfast_lease WHERE key = p_key AND expires_at > clock_timestamp()
    ) THEN
        PERFORM {schema}.holdfast_wake(p_key);
    END IF;
    RETURN removed;
END
$holdfast$;
