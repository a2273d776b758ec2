-- Contract: makes every object of schema version 1, and nothing else. Run once, inside one transaction, in a database
-- that has no table whose name begins with `holdfast_`; a user's own tables may live beside them in the same file.
--
-- Times end in `_ns`. `expires_ns` is read on the clock that `clock` names (the boot-time clock of one boot of one
-- machine); `…_wall_ns` is Unix time, for readers to whom that clock means nothing. `token` and `ticket` are SHA-256 in
-- hexadecimal: who can read this file cannot release what is in it.

CREATE TABLE holdfast_meta (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- The fence of the whole file: one row, which only rises. The check refuses the step past the range of 64 bits, where
-- SQLite would go on in floating point and two grants would get the same number.
CREATE TABLE holdfast_fence (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    value INTEGER NOT NULL CHECK (typeof(value) = 'integer')
);

CREATE TABLE holdfast_lease (
    key             TEXT NOT NULL PRIMARY KEY,
    token           TEXT NOT NULL,   -- '': released, but kept for a while; matches no token
    fence           INTEGER NOT NULL CHECK (typeof(fence) = 'integer'),
    owner           TEXT NOT NULL,
    family          TEXT NOT NULL,
    granted_wall_ns INTEGER NOT NULL,
    expires_ns      INTEGER NOT NULL,
    expires_wall_ns INTEGER NOT NULL,
    clock           TEXT NOT NULL,
    process         TEXT NOT NULL    -- '': the lease does not end with any process
) WITHOUT ROWID;

-- The counter moves in the same statement as the grant, so a grant is one statement and one commit.
CREATE TRIGGER holdfast_lease_granted AFTER INSERT ON holdfast_lease BEGIN
    UPDATE holdfast_fence SET value = new.fence WHERE value < new.fence;
END;

CREATE TRIGGER holdfast_lease_granted_again AFTER UPDATE OF fence ON holdfast_lease BEGIN
    UPDATE holdfast_fence SET value = new.fence WHERE value < new.fence;
END;

-- The queues of fair locks, in the order of `id`.
CREATE TABLE holdfast_ticket (
    id              INTEGER PRIMARY KEY,
    key             TEXT NOT NULL,
    ticket          TEXT NOT NULL,
    address         TEXT NOT NULL,   -- where its waiter listens; '': nowhere
    expires_ns      INTEGER NOT NULL,
    expires_wall_ns INTEGER NOT NULL,
    clock           TEXT NOT NULL,
    process         TEXT NOT NULL
);

CREATE UNIQUE INDEX holdfast_ticket_name ON holdfast_ticket (key, ticket);
CREATE INDEX holdfast_ticket_order ON holdfast_ticket (key, id);

-- Waiters that want a hint when a key may be free. Addresses mean something only inside one `place` (boot and network
-- namespace).
CREATE TABLE holdfast_listener (
    id              INTEGER PRIMARY KEY,
    key             TEXT NOT NULL,
    address         TEXT NOT NULL,
    place           TEXT NOT NULL,
    expires_wall_ns INTEGER NOT NULL
);

CREATE INDEX holdfast_listener_key ON holdfast_listener (key, id);

-- Forced releases by operators. Append-only; the triggers enforce it.
CREATE TABLE holdfast_audit (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    wall_ns        INTEGER NOT NULL,
    action         TEXT NOT NULL,
    key            TEXT NOT NULL,
    actor          TEXT NOT NULL,
    reason         TEXT NOT NULL,
    previous_owner TEXT NOT NULL,
    previous_fence INTEGER,
    fence          INTEGER NOT NULL
);

CREATE TRIGGER holdfast_audit_is_not_changed BEFORE UPDATE ON holdfast_audit BEGIN
    SELECT raise(ABORT, 'holdfast_audit is append-only');
END;

CREATE TRIGGER holdfast_audit_is_not_deleted BEFORE DELETE ON holdfast_audit BEGIN
    SELECT raise(ABORT, 'holdfast_audit is append-only');
END;

INSERT INTO holdfast_fence (id, value) VALUES (1, 0);
INSERT INTO holdfast_meta (name, value) VALUES ('format', 'holdfast'), ('schema', '1');
