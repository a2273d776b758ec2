-- Contract: holds every client of one table to the guard, also one that knows nothing of Holdfast.
--
-- In both modes: a fence that is set is not negative, and not below what the row or the ledger has met; it never goes
-- down, nor back to NULL; the id of a row does not change; a row that is deleted leaves its fence in the ledger.
-- `rising`: what does not mention the fence is let through, and a row that comes back so carries on with the fence that
-- is remembered; TRUNCATE remembers all rows. `strict`: an INSERT or UPDATE that does not set the fence is refused, and
-- so is TRUNCATE. A DELETE cannot set a column, so it is announced: in the same transaction, before it, the ledger
-- entry of the row is raised to a fence that is not below the row's (the Python guards do so); a DELETE without that is
-- refused.
--
-- A refusal has an SQLSTATE of its own: HF001 a newer fence was met (DETAIL has it), HF002 no fence, HF003 a delete
-- that was not announced, HF004 not a fence, HF005 a changed id.
--
-- How a statement is known to set the fence: a column trigger fires only then. It turns the fence f into -1 - f, and
-- the next trigger turns it back and refuses what was not turned. Postgres fires triggers by name, so no trigger comes
-- between the two; triggers of others see the true value. What is finally stored is judged AFTER the row, when no other
-- trigger can change it any more. The client that makes a row holds its ledger entry until the end of the transaction,
-- as the guards do.
--
-- The functions that read the ledger run with the rights of their installer, so clients need none on the ledger
-- (but to announce a DELETE). Does not cover: sessions with session_replication_role = replica, disabled triggers,
-- DROP TABLE. A foreign key that updates or deletes rows here counts as any other client.

-- part: present (strict)
CREATE OR REPLACE FUNCTION {schema}.{function}() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $holdfast$ BEGIN
    -- Holdfast guard: {mode}.
    IF NEW.{fence} IS NULL THEN
        RAISE EXCEPTION 'no fence: {fence_shown} of {shown} cannot be NULL' USING ERRCODE = 'HF002';
    ELSIF NEW.{fence} < 0 THEN
        RAISE EXCEPTION 'not a fence: % for {fence_shown} of {shown}', NEW.{fence} USING ERRCODE = 'HF004';
    END IF;
    NEW.{fence} := -1 - NEW.{fence};
    RETURN NEW;
END
$holdfast$
-- trigger: BEFORE UPDATE OF {fence} ON {table} FOR EACH ROW

-- part: require (strict)
CREATE OR REPLACE FUNCTION {schema}.{function}() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $holdfast$ BEGIN
    -- Holdfast guard: {mode}.
    IF NEW.{fence} IS NULL OR NEW.{fence} >= 0 THEN
        RAISE EXCEPTION 'no fence: a write to {shown} has to set {fence_shown}' USING ERRCODE = 'HF002',
            HINT = 'Set {fence_shown} to the fence of your lease in the same UPDATE.';
    END IF;
    NEW.{fence} := -1 - NEW.{fence};
    RETURN NEW;
END
$holdfast$
-- trigger: BEFORE UPDATE ON {table} FOR EACH ROW

-- part: update
CREATE OR REPLACE FUNCTION {schema}.{function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path =
pg_catalog, pg_temp AS $holdfast$ DECLARE
    seen bigint;
BEGIN
    -- Holdfast guard: {mode}.
    IF {id_changed} THEN
        RAISE EXCEPTION 'the id of a row of {shown} cannot be changed' USING ERRCODE = 'HF005', HINT = 'Insert another
        row.';
    ELSIF NEW.{fence} IS NULL THEN
        RAISE EXCEPTION 'no fence: {fence_shown} of {shown} cannot go back to NULL' USING ERRCODE = 'HF002';
    ELSIF NEW.{fence} < 0 THEN
        RAISE EXCEPTION 'not a fence: % for {fence_shown} of {shown}', NEW.{fence} USING ERRCODE = 'HF004';
    END IF;
    SELECT greatest(OLD.{fence}, (SELECT fence FROM {ledger} WHERE place = {place} AND resource = {resource_new})) INTO
    seen; IF NEW.{fence} < seen THEN
        RAISE EXCEPTION 'stale fence: % for {shown} %, which has met a newer one', NEW.{fence}, {resource_new}
            USING ERRCODE = 'HF001', DETAIL = 'seen ' || seen;
    END IF;
    RETURN NULL;
END
$holdfast$
-- trigger: AFTER UPDATE ON {table} FOR EACH ROW WHEN (NEW.{fence} IS DISTINCT FROM OLD.{fence} OR {id_changed})

-- part: reserve
CREATE OR REPLACE FUNCTION {schema}.{function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path =
pg_catalog, pg_temp AS $holdfast$ DECLARE
    seen bigint;
BEGIN
    -- Holdfast guard: {mode}.
    -- The entry is held from here on, before the row is made: in the same order as the guards do it. An id that a later
    -- trigger gives, and a row that is there already (an upsert), are for the AFTER triggers.
    IF {id_missing} OR EXISTS (SELECT FROM {table} AS held WHERE {held_is_new}) THEN
        RETURN NEW;
    END IF;
    INSERT INTO {ledger} AS entry (place, resource, fence) VALUES ({place}, {resource_new}, 0)
        ON CONFLICT (place, resource) DO UPDATE SET fence = entry.fence RETURNING entry.fence INTO seen;
    -- if rising
    IF NEW.{fence} IS NULL AND seen > 0 THEN
        NEW.{fence} := seen;
    END IF;
    -- end
    RETURN NEW;
END
$holdfast$
-- trigger: BEFORE INSERT ON {table} FOR EACH ROW

-- part: insert
CREATE OR REPLACE FUNCTION {schema}.{function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path =
pg_catalog, pg_temp AS $holdfast$ DECLARE
    seen bigint;
BEGIN
    -- Holdfast guard: {mode}.
    IF {id_missing} THEN
        RAISE EXCEPTION 'a row of {shown} needs an id' USING ERRCODE = 'HF005';
    -- if strict
    ELSIF NEW.{fence} IS NULL THEN
        RAISE EXCEPTION 'no fence: a new row of {shown} has to set {fence_shown}' USING ERRCODE = 'HF002',
            HINT = 'Set {fence_shown} to the fence of your lease in the same INSERT.';
    -- end
    ELSIF NEW.{fence} < 0 THEN
        RAISE EXCEPTION 'not a fence: % for {fence_shown} of {shown}', NEW.{fence} USING ERRCODE = 'HF004';
    END IF;
    SELECT fence INTO seen FROM {ledger} WHERE place = {place} AND resource = {resource_new} FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO {ledger} AS entry (place, resource, fence) VALUES ({place}, {resource_new}, 0)
            ON CONFLICT (place, resource) DO UPDATE SET fence = entry.fence RETURNING entry.fence INTO seen;
    END IF;
    IF NEW.{fence} < seen THEN
        RAISE EXCEPTION 'stale fence: % for {shown} %, which has met a newer one', NEW.{fence}, {resource_new}
            USING ERRCODE = 'HF001', DETAIL = 'seen ' || seen;
    END IF;
    -- if rising
    IF NEW.{fence} IS NULL AND seen > 0 THEN
        UPDATE {table} SET {fence} = seen WHERE {is_new};
    END IF;
    -- end
    DELETE FROM {ledger} WHERE place = {place} AND resource = {resource_new};
    RETURN NULL;
END
$holdfast$
-- trigger: AFTER INSERT ON {table} FOR EACH ROW

-- part: delete
CREATE OR REPLACE FUNCTION {schema}.{function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path =
pg_catalog, pg_temp AS $holdfast$ DECLARE
    seen bigint;
BEGIN
    -- Holdfast guard: {mode}.
    -- if strict
    SELECT fence INTO seen FROM {ledger} WHERE place = {place} AND resource = {resource_old};
    IF NOT FOUND THEN
        RAISE EXCEPTION 'not announced: a delete from {shown} has to be announced in {ledger_shown}' USING ERRCODE =
        'HF003',
            HINT = 'Raise the entry (place {shown_place}, resource ' || {resource_old}
                || ') to the fence of your lease first, in the same transaction.';
    ELSIF seen < OLD.{fence} THEN
        RAISE EXCEPTION 'stale fence: % for {shown} %, which has met a newer one', seen, {resource_old}
            USING ERRCODE = 'HF001', DETAIL = 'seen ' || OLD.{fence};
    END IF;
    -- end
    -- if rising
    IF OLD.{fence} IS NOT NULL THEN
        INSERT INTO {ledger} AS entry (place, resource, fence) VALUES ({place}, {resource_old}, OLD.{fence})
            ON CONFLICT (place, resource) DO UPDATE
            SET fence = greatest(entry.fence, excluded.fence), seen_at = CURRENT_TIMESTAMP;
    END IF;
    -- end
    RETURN OLD;
END
$holdfast$
-- trigger: BEFORE DELETE ON {table} FOR EACH ROW

-- part: truncate
CREATE OR REPLACE FUNCTION {schema}.{function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path =
pg_catalog, pg_temp AS $holdfast$ BEGIN
    -- Holdfast guard: {mode}.
    -- if strict
    RAISE EXCEPTION 'not announced: {shown} cannot be truncated, for that would forget its fences' USING ERRCODE =
    'HF003',
        HINT = 'Delete the rows under a fence, or take the guard away: holdfast guard remove {shown}';
    -- end
    -- if rising
    INSERT INTO {ledger} AS entry (place, resource, fence)
        SELECT {place}, {resource_held}, held.{fence} FROM {table} AS held WHERE held.{fence} IS NOT NULL
        ON CONFLICT (place, resource) DO UPDATE
        SET fence = greatest(entry.fence, excluded.fence), seen_at = CURRENT_TIMESTAMP;
    RETURN NULL;
    -- end
END
$holdfast$
-- trigger: BEFORE TRUNCATE ON {table} FOR EACH STATEMENT
