-- The balances of a drill and their own record of changes.
--
-- Contract: one row of `account` for each lock; `holdfast_fence` is the guard's. A change of the version is a write.
-- A higher fence without one is a registration before a read. Both add a row to `deed`, in the same transaction. The
-- connection provides `now_ns()`. Times in `deed` never go back: the checker sorts by them.
CREATE TABLE IF NOT EXISTS account (
    key TEXT NOT NULL PRIMARY KEY,
    balance INTEGER NOT NULL DEFAULT 0,
    version INTEGER NOT NULL DEFAULT 0,
    based_on INTEGER NOT NULL DEFAULT 0,
    writer TEXT NOT NULL DEFAULT '',
    carried INTEGER,
    holdfast_fence INTEGER
);
CREATE TABLE IF NOT EXISTS deed (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    at_ns INTEGER NOT NULL,
    key TEXT NOT NULL,
    writer TEXT NOT NULL,
    carried INTEGER,
    version INTEGER,
    based_on INTEGER
);
CREATE TRIGGER IF NOT EXISTS account_written AFTER UPDATE OF version ON account BEGIN
    INSERT INTO deed (kind, at_ns, key, writer, carried, version, based_on)
    SELECT 'write', max(now_ns(), coalesce(max(at_ns), 0)), NEW.key, NEW.writer, NEW.carried, NEW.version, NEW.based_on
    FROM deed;
END;
CREATE TRIGGER IF NOT EXISTS account_entered AFTER UPDATE OF holdfast_fence ON account
WHEN NEW.version = OLD.version AND NEW.holdfast_fence IS NOT OLD.holdfast_fence BEGIN
    INSERT INTO deed (kind, at_ns, key, writer, carried)
    SELECT 'read', max(now_ns(), coalesce(max(at_ns), 0)), NEW.key, '', NEW.holdfast_fence FROM deed;
END
