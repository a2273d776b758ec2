"""The functions that the workers of a fleet under test run, and what they leave behind for the checker.

Every run writes down, in tables of its own beside the plane's, that it began (`fleet_attempt`, unguarded: a job may
well run twice), that the guard let it in (`fleet_entered`), and its one effect (`fleet_effect`, in the transaction of a
guarded write: an effect must never happen twice). A write that the guard refused is in `fleet_refused`.

The effect is the dangerous kind: look whether it was done, think, do it. Between thinking and doing a job can be told
to wait (`"pause": true`): it then says with a file where it is, and continues when another file says so.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, Final

import psycopg

from holdfast.errors import FencedOut, NotEntered, RetryLater
from holdfast.guards.postgres import GuardedTable
from holdfast.plane import App, BlockingContext

DATABASE: Final = "FLEET_DATABASE"
TABLES: Final = """
    CREATE TABLE fleet_row (job TEXT NOT NULL PRIMARY KEY, applied BIGINT NOT NULL);
    CREATE SEQUENCE fleet_place;
    CREATE TABLE fleet_attempt (
        place BIGINT NOT NULL DEFAULT nextval('fleet_place'), job TEXT NOT NULL, attempt BIGINT NOT NULL,
        fence BIGINT NOT NULL, worker TEXT NOT NULL, pid BIGINT NOT NULL,
        at_ns BIGINT NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000000)::BIGINT
    );
    CREATE TABLE fleet_entered (LIKE fleet_attempt INCLUDING DEFAULTS);
    CREATE TABLE fleet_effect (LIKE fleet_attempt INCLUDING DEFAULTS);
    CREATE TABLE fleet_refused (LIKE fleet_attempt INCLUDING DEFAULTS);
"""

app = App("fleet")

_here = threading.local()


def _database() -> psycopg.Connection[Any]:
    """A connection of this thread's own; one that died is replaced."""
    known: psycopg.Connection[Any] | None = getattr(_here, "connection", None)
    if known is None or known.closed:
        known = _here.connection = psycopg.connect(os.environ[DATABASE], autocommit=True, connect_timeout=5)
    return known


def _note(data: psycopg.Connection[Any], table: str, ctx: BlockingContext) -> None:
    data.execute(
        f"INSERT INTO {table} (job, attempt, fence, worker, pid) VALUES (%s, %s, %s, %s, %s)",
        (ctx.job, ctx.attempt, ctx.fence, ctx.worker, os.getpid()),
    )


@app.job("effect")
def effect(ctx: BlockingContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Has its effect, unless an earlier run of the same job has had it."""
    try:
        data = _database()
        _note(data, "fleet_attempt", ctx)
        return _take_effect(data, ctx, payload)
    except psycopg.OperationalError as error:  # the database went away: no fault of the job's
        raise RetryLater(0.2, error) from error


def _take_effect(data: psycopg.Connection[Any], ctx: BlockingContext, payload: dict[str, Any]) -> dict[str, Any]:
    table = GuardedTable(data, "fleet_row", id="job", key="holdfast:worker:job:{job}")
    try:
        with table.section(ctx.carried, ctx.job) as row:
            _note(data, "fleet_entered", ctx)
            if row.exists and row["applied"]:
                return {"fence": ctx.fence, "applied": False}
            ctx.ensure_held()
            if payload.get("pause"):
                _wait_at_the_door(ctx, Path(payload["place"]))
            elif payload.get("takes"):
                ctx.cancelled.wait(payload["takes"])
            with data.transaction():
                row.upsert(applied=1)
                _note(data, "fleet_effect", ctx)
    except (FencedOut, NotEntered):
        _note(data, "fleet_refused", ctx)
        raise
    return {"fence": ctx.fence, "applied": True, "fill": "x" * payload.get("fill_result", 0)}


def _wait_at_the_door(ctx: BlockingContext, place: Path) -> None:
    """Checked, and not yet done. Deaf on purpose: what keeps a late write out is the guard, and not good manners."""
    draft = place / f"{ctx.job}.{ctx.fence}.draft"
    draft.write_text(str(os.getpid()))
    draft.rename(draft.with_suffix(".here"))
    while not draft.with_suffix(".go").exists() and not (place / f"{ctx.job}.open").exists():
        time.sleep(0.005)


@app.job("fails")
def fails(payload: dict[str, Any]) -> None:
    """Never works."""
    raise ValueError("on purpose")


@app.job("kills")
def kills(ctx: BlockingContext, payload: dict[str, Any]) -> None:
    """Ends its process immediately, as a lack of memory does."""
    _note(_database(), "fleet_attempt", ctx)
    os._exit(1)
