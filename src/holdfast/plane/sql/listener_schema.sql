-- Contract: creates the table of listeners, which receive a hint when another process commits. Safe to run again. One
-- row for each open database object that listens. `address` is a name in the abstract socket namespace, which is valid
-- only at its `place` (a boot of the machine, and a network namespace). No row has to survive anything.
CREATE TABLE IF NOT EXISTS plane_listener (
    address       TEXT NOT NULL PRIMARY KEY,
    place         TEXT NOT NULL,
    since_wall_ns INTEGER NOT NULL
) WITHOUT ROWID;
