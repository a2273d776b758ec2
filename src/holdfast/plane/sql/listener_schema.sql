-- Contract: makes the table of those who want a hint when another process has committed something. Safe to run again.
-- One row for each open database object that listens. `address` is a name in the abstract socket namespace, which means
-- something only at its `place` (a boot of the machine, and a network namespace). Nothing here has to survive anything.
CREATE TABLE IF NOT EXISTS plane_listener (
    address       TEXT NOT NULL PRIMARY KEY,
    place         TEXT NOT NULL,
    since_wall_ns INTEGER NOT NULL
) WITHOUT ROWID;
