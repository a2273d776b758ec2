"""Stores which bus a plane uses, so that no process publishes to a bus without consumers.

Both the bus in the database and one on NATS exist as soon as a setting names them. A command with the wrong one would
stage its messages, report success, and have no effect.

Promises: the first process of a plane stores its bus. A process or command that opens the same database with another
bus is refused before anything is staged. A plane without a process so far refuses none.

Does not promise to tell two servers apart: what is compared is the kind and the name of the stream, since one server
has many names, and a plane moves to another one without being another plane. No host and no password is written.
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import BadInput
from holdfast.plane.bus.nats.naming import stream_of
from holdfast.plane.db.ports import Database, Tx
from holdfast.plane.db.statements import sql

NAME: Final = "bus"
_IN_DATABASE: Final = "database"
_GET: Final = sql("meta_get")
_KEEP: Final = sql("meta_insert")
_PUT: Final = sql("meta_put")


async def check_bus(database: Database, url: str | None, *, serving: bool) -> None:
    """Return if this is the bus of the plane, else raise `BadInput`. `serving`: a process of it, whose word counts."""
    mine = _kept(url)

    async def keep(tx: Tx) -> str | None:
        await tx.query(_KEEP, {"name": NAME, "value": mine})
        return await _known(tx)  # another process may have been quicker

    known = await database.read(_known)
    if known is None and serving:
        known = await database.write(keep)
    if known in (None, mine):
        return
    raise BadInput(
        "bus",
        f"this plane speaks through {_shown(known)}, and here it would be {_shown(mine)}, which has no consumers",
        "name its bus with --bus, $HOLDFAST_BUS or bus = in holdfast.toml; a plane is switched to another one, while "
        "none of its processes runs, by holdfast up --switch-bus",
    )


async def switch_bus(database: Database, url: str | None) -> tuple[str | None, str]:
    """Write down that the plane uses this bus from now on. What it used before, if anything, and what now, as text."""
    mine = _kept(url)

    async def put(tx: Tx) -> str | None:
        known = await _known(tx)
        await tx.query(_PUT, {"name": NAME, "value": mine})
        return known

    known = await database.write(put)
    return None if known is None else _shown(known), _shown(mine)


async def _known(tx: Tx) -> str | None:
    rows = await tx.query(_GET, {"name": NAME})
    return rows[0]["value"] if rows else None


def _kept(url: str | None) -> str:
    return _IN_DATABASE if url is None else f"nats:{stream_of(url)}"


def _shown(kept: str | None) -> str:
    kind, _, stream = (kept or "").partition(":")
    return f"NATS, in the stream {stream}" if stream else f"the {kind}"
