-- Contract: makes the scratch table of the triggers, if it is not there yet. A row in it lives as long as one statement
-- on a guarded table. `insert`: the fence of the row that an INSERT OR REPLACE is about to replace. `update`: an UPDATE of
-- a row is under way, and `fence` is what it has set, NULL if nothing; an UPDATE inside another, by a trigger, has a higher
-- `level`. What a cancelled statement leaves here means nothing.
CREATE TABLE IF NOT EXISTS holdfast_guard_mark (
    place    TEXT NOT NULL,
    resource TEXT NOT NULL,
    act      TEXT NOT NULL,
    level    INTEGER NOT NULL DEFAULT 0,
    fence,
    PRIMARY KEY (place, resource, act, level)
) WITHOUT ROWID
