-- Contract: holds every client of one table to the guard, also one that knows nothing of Holdfast.
--
-- In both modes: a fence that is set is a whole number from 0, and not below what the row or the ledger has met; it
-- never goes down, nor back to NULL; the id of a row does not change; a row that is deleted, or replaced, leaves its
-- fence in the ledger. `rising`: what does not mention the fence is let through, and a row that comes back so carries
-- on with the fence that is remembered. `strict`: an INSERT or UPDATE that does not set the fence is refused. A DELETE
-- cannot set a column, so it is announced: in the same transaction, before it, the ledger entry of the row is raised to
-- a fence that is not below the row's (the Python guards do so); a DELETE without that is refused.
--
-- A refusal is RAISE(ABORT): the statement changes nothing, whatever its OR clause says. Its text begins with
-- `holdfast HF…`: HF001 a newer fence was met, HF002 no fence, HF003 a delete that was not announced, HF004 not a
-- fence, HF005 a changed or missing id.
--
-- How an UPDATE is known to set the fence: only then does BEFORE UPDATE OF fire. `begin` opens a level for the row,
-- `present` writes the fence into the highest, `update` wants it there and closes the level. So an update that a
-- trigger makes inside another has to set the fence itself, and cannot lend its own to the outer one; the level of an
-- update that was cancelled (UPDATE OR IGNORE) is never the highest for other statements. `begin` has to fire before
-- `present`: SQLite fires the youngest trigger first, so it is made after it. In another order every write would be
-- refused.
--
-- Does not cover: a row that is replaced because of a partial or expression index (its fence is forgotten); triggers of
-- others that update the table themselves and do not set the fence (refused in strict mode: let them set it to
-- NEW's). With PRAGMA recursive_triggers, REPLACE counts as a DELETE and needs to be announced.

-- part: present (strict)
CREATE TRIGGER {present} BEFORE UPDATE OF {fence} ON {table}
BEGIN
    -- Holdfast guard: {mode}.
    UPDATE {mark} SET fence = NEW.{fence} WHERE place = {place} AND resource = {resource_old} AND act = 'update'
        AND level = {level};
END

-- part: begin
CREATE TRIGGER {begin} BEFORE UPDATE ON {table}
BEGIN
    -- Holdfast guard: {mode}.
    -- if strict
    -- What cancelled updates have left; no row is updated inside its own update as often as that.
    DELETE FROM {mark} WHERE place = {place} AND resource = {resource_old} AND act = 'update' AND level < {level} - 50;
    INSERT INTO {mark} (place, resource, act, level) SELECT {place}, {resource_old}, 'update', coalesce({level}, 0) + 1
        WHERE {resource_old} IS NOT NULL;
    -- end
    {remember_victims}
END

-- part: update
CREATE TRIGGER {update} AFTER UPDATE ON {table}
BEGIN
    -- Holdfast guard: {mode}.
    SELECT RAISE(ABORT, 'holdfast HF005: the id of a row of {shown} cannot be changed; insert another row')
        WHERE {id_changed};
    -- if strict
    SELECT RAISE(ABORT, 'holdfast HF002: no fence: set {fence_shown} of {shown} to the fence of your lease in the same UPDATE')
        WHERE NEW.{fence} IS NULL OR NOT EXISTS (
            SELECT 1 FROM {mark} WHERE place = {place} AND resource = {resource_old} AND act = 'update'
            AND level = {level} AND fence IS NOT NULL);
    -- end
    SELECT RAISE(ABORT, 'holdfast HF002: no fence: {fence_shown} of {shown} cannot go back to NULL')
        WHERE NEW.{fence} IS NULL AND OLD.{fence} IS NOT NULL;
    SELECT RAISE(ABORT, 'holdfast HF004: not a fence: {fence_shown} of {shown} takes whole numbers from 0')
        WHERE NEW.{fence} IS NOT OLD.{fence} AND (typeof(NEW.{fence}) <> 'integer' OR NEW.{fence} < 0);
    SELECT RAISE(ABORT, 'holdfast HF001: stale fence: the row of {shown} has met a newer one; nothing was changed')
        WHERE NEW.{fence} < OLD.{fence} OR (NEW.{fence} IS NOT OLD.{fence} AND NEW.{fence} < (
            SELECT fence FROM {ledger} WHERE place = {place} AND resource = {resource_old}));
    DELETE FROM {mark} WHERE place = {place} AND resource = {resource_old}
        AND (act = 'insert' OR (act = 'update' AND level = {level}));
END

-- part: replace
CREATE TRIGGER {replace} BEFORE INSERT ON {table}
BEGIN
    -- Holdfast guard: {mode}.
    DELETE FROM {mark} WHERE place = {place} AND resource = {resource_new} AND act = 'insert';
    INSERT INTO {mark} (place, resource, act, fence) SELECT {place}, {resource_new}, 'insert', held.{fence}
        FROM {table} AS held WHERE {held_is_new} AND held.{fence} IS NOT NULL;
    {remember_victims}
END

-- part: insert
CREATE TRIGGER {insert} AFTER INSERT ON {table}
BEGIN
    -- Holdfast guard: {mode}.
    SELECT RAISE(ABORT, 'holdfast HF005: a row of {shown} needs an id') WHERE {id_missing};
    -- if strict
    SELECT RAISE(ABORT, 'holdfast HF002: no fence: set {fence_shown} of {shown} to the fence of your lease in the same INSERT')
        WHERE NEW.{fence} IS NULL;
    -- end
    SELECT RAISE(ABORT, 'holdfast HF004: not a fence: {fence_shown} of {shown} takes whole numbers from 0')
        WHERE NEW.{fence} IS NOT NULL AND (typeof(NEW.{fence}) <> 'integer' OR NEW.{fence} < 0);
    SELECT RAISE(ABORT, 'holdfast HF001: stale fence: the row of {shown} has met a newer one; nothing was changed')
        WHERE NEW.{fence} < (SELECT max(fence) FROM ({memory}));
    -- if rising
    UPDATE {table} SET {fence} = (SELECT max(fence) FROM ({memory}))
        WHERE {is_new} AND NEW.{fence} IS NULL AND EXISTS ({memory});
    -- end
    DELETE FROM {mark} WHERE place = {place} AND resource = {resource_new} AND act = 'insert';
    DELETE FROM {ledger} WHERE place = {place} AND resource = {resource_new};
END

-- part: delete
CREATE TRIGGER {delete} BEFORE DELETE ON {table}
BEGIN
    -- Holdfast guard: {mode}.
    -- if strict
    SELECT RAISE(ABORT, 'holdfast HF001: stale fence: the row of {shown} has met a newer one; nothing was changed')
        WHERE OLD.{fence} > (SELECT fence FROM {ledger} WHERE place = {place} AND resource = {resource_old});
    SELECT RAISE(ABORT, 'holdfast HF003: not announced: before deleting from {shown}, raise the entry of the row in {ledger_shown} to the fence of your lease, in the same transaction')
        WHERE NOT EXISTS (SELECT 1 FROM {ledger} WHERE place = {place} AND resource = {resource_old});
    -- end
    -- if rising
    INSERT INTO {ledger} (place, resource, fence) SELECT {place}, {resource_old}, OLD.{fence}
        WHERE OLD.{fence} IS NOT NULL AND {resource_old} IS NOT NULL
        ON CONFLICT (place, resource) DO UPDATE SET fence = max(fence, excluded.fence), seen_at = CURRENT_TIMESTAMP;
    -- end
END
