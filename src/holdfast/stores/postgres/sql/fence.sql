-- Contract: `holdfast_next_fence` returns a fence above every earlier one of this key, and keeps the key's counter locked
-- until the transaction ends. So what follows in the transaction sees every earlier grant of the key.
--
-- The rules are those of `core/lease/fence_clock.py`: the clock of the server in µs where it is ahead; else three
-- quarters of its pace, an hour a step at most; and a number below 2^20 from the token when the clock is behind its
-- value at the last fence. A counter that was truncated, or dropped with its table, starts at the clock.
-- `p_token` is hexadecimal, and no other grant has the same one.

CREATE OR REPLACE FUNCTION {schema}.holdfast_now_us() RETURNS bigint LANGUAGE sql VOLATILE AS $holdfast$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$holdfast$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_slot(p_key text) RETURNS integer LANGUAGE sql IMMUTABLE AS $holdfast$
    SELECT get_byte(hash, 0) << 6 | get_byte(hash, 1) >> 2 FROM (SELECT sha256(convert_to(p_key, 'UTF8'))) AS s (hash)
$holdfast$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_next_fence(p_key text, p_token text) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $holdfast$
DECLARE
    fence bigint;
BEGIN
    INSERT INTO {schema}.holdfast_fence AS f (slot, value, clock_us)
    VALUES ({schema}.holdfast_slot(p_key), {schema}.holdfast_now_us(), {schema}.holdfast_now_us())
    ON CONFLICT (slot) DO UPDATE SET
        value = greatest({schema}.holdfast_now_us(), f.value + CASE
            WHEN {schema}.holdfast_now_us() < f.clock_us THEN 1 + ('x' || substr(p_token, 1, 5))::bit(20)::integer
            ELSE greatest(1, least(({schema}.holdfast_now_us() - f.clock_us) * 3 / 4, 3600000000)) END),
        clock_us = {schema}.holdfast_now_us()
    RETURNING value INTO fence;
    RETURN fence;
END
$holdfast$;
