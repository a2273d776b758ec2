-- Contract: creates every table of schema version 1 that does not exist. Run in one transaction, under the advisory lock
-- of `lock.sql`, with `{schema}` replaced by a quoted name. Changes no table and no row that exists, but counts.
--
-- All times are the clock of this server. `token`, and the name of a ticket, are SHA-256 in hexadecimal: a reader of
-- these tables cannot release a lease.

CREATE TABLE IF NOT EXISTS {schema}.holdfast_meta (
    name  text PRIMARY KEY,
    value text NOT NULL
);

-- Fence counters. A key always uses the same one of 16384, and its row is the mutex of all grants of that key: it stays
-- locked until the grant is committed. Rows are created when they are first used. The check ends the range at 2^53.
CREATE TABLE IF NOT EXISTS {schema}.holdfast_fence (
    slot     integer PRIMARY KEY,
    value    bigint NOT NULL CHECK (value BETWEEN 1 AND 9007199254740991),
    clock_us bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE IF NOT EXISTS {schema}.holdfast_lease (
    key        text COLLATE "C" PRIMARY KEY,
    token      text NOT NULL,  -- '': released, but kept for a while; matches no token
    fence      bigint NOT NULL,
    owner      text NOT NULL,
    family     text NOT NULL,
    granted_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 70);

-- Waiters, in the order of `id`. A ticket of a fair lock keeps its row until it is granted, leaves or expires. Any other
-- waiter has a row until it is notified. `channel` '': this waiter gets no notification.
CREATE TABLE IF NOT EXISTS {schema}.holdfast_waiter (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key        text COLLATE "C" NOT NULL,
    name       text NOT NULL,
    fair       boolean NOT NULL,
    channel    text NOT NULL,
    listener   text NOT NULL,
    expires_at timestamptz NOT NULL
);

CREATE UNIQUE INDEX IF NOT EXISTS holdfast_waiter_name ON {schema}.holdfast_waiter (key, name);
CREATE INDEX IF NOT EXISTS holdfast_waiter_order ON {schema}.holdfast_waiter (key, id);

-- Forced releases by operators. Append-only; a trigger enforces it.
CREATE TABLE IF NOT EXISTS {schema}.holdfast_audit (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             timestamptz NOT NULL,
    action         text NOT NULL,
    key            text NOT NULL,
    actor          text NOT NULL,
    reason         text NOT NULL,
    previous_owner text NOT NULL,
    previous_fence bigint,
    fence          bigint NOT NULL
);

CREATE OR REPLACE FUNCTION {schema}.holdfast_append_only() RETURNS trigger LANGUAGE plpgsql AS $holdfast$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME;
END
$holdfast$;

CREATE OR REPLACE TRIGGER holdfast_audit_is_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON {schema}.holdfast_audit
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.holdfast_append_only();

INSERT INTO {schema}.holdfast_meta (name, value) VALUES ('format', 'holdfast'), ('schema', '1') ON CONFLICT DO NOTHING;
