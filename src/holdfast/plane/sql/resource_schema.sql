-- Contract: creates the tables of the resource locks, in a database that has none of them. Run once, in one transaction.
--
-- Times end in `_ns` and are Unix time in nanoseconds, by the clock of the database. `token` is a digest; the token itself is
-- not stored. A slot is the fence counter of many resources, and the row that serializes transactions about them. Slots are
-- never deleted, so fences never decrease, even when the rows of a lock are deleted.

CREATE TABLE plane_resource_slot (
    slot  BIGINT NOT NULL PRIMARY KEY,
    fence BIGINT NOT NULL
);

INSERT INTO plane_resource_slot (slot, fence)
WITH RECURSIVE number(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM number WHERE n < 255)
SELECT n, 0 FROM number;

-- One row for each holder: any number with mode `shared`, or a single one with mode `exclusive`, and rows that are over.
CREATE TABLE plane_resource_lock (
    tenant     TEXT NOT NULL,
    resource   TEXT NOT NULL,
    token      TEXT NOT NULL,
    slot       BIGINT NOT NULL,
    mode       TEXT NOT NULL,
    owner      TEXT NOT NULL,
    fence      BIGINT NOT NULL,
    granted_ns BIGINT NOT NULL,
    expires_ns BIGINT NOT NULL,
    PRIMARY KEY (tenant, resource, token)
);

CREATE INDEX plane_resource_lock_over ON plane_resource_lock (slot, expires_ns);
CREATE INDEX plane_resource_lock_listed ON plane_resource_lock (tenant, resource, fence);

-- Waiting writers: clients that asked for a resource exclusively and were refused. They block new readers until they expire.
CREATE TABLE plane_resource_wish (
    tenant   TEXT NOT NULL,
    resource TEXT NOT NULL,
    owner    TEXT NOT NULL,
    slot     BIGINT NOT NULL,
    until_ns BIGINT NOT NULL,
    PRIMARY KEY (tenant, resource, owner)
);

CREATE INDEX plane_resource_wish_over ON plane_resource_wish (slot, until_ns);
