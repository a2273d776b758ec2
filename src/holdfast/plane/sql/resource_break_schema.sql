-- Contract: creates the table of forced releases, in a database that has none. Run once, in one transaction.
--
-- One row for each removed holder. Rows are never changed or deleted. `at_ns` is Unix time in nanoseconds, by the clock of the
-- database. `id` is the slot and the fence, which no two grants share.

CREATE TABLE plane_resource_break (
    id       TEXT NOT NULL PRIMARY KEY,
    at_ns    BIGINT NOT NULL,
    tenant   TEXT NOT NULL,
    resource TEXT NOT NULL,
    mode     TEXT NOT NULL,
    owner    TEXT NOT NULL,
    fence    BIGINT NOT NULL,
    actor    TEXT NOT NULL,
    reason   TEXT NOT NULL
);

CREATE INDEX plane_resource_break_newest ON plane_resource_break (at_ns, id);
CREATE INDEX plane_resource_break_recent ON plane_resource_break (tenant, at_ns, id);
