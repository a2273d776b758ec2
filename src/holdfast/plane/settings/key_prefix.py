"""The prefix of a plane's lock keys, stored with its state: processes exclude each other through equal keys.

A process with another prefix would be granted every lock that another process holds, and would run its jobs too.

Promises:

- The first process of a plane stores its prefix. A process or command with another prefix is refused before it acquires
  a lock. A plane from before prefixes could be chosen has the default one. A plane without a process so far refuses no
  command.
- `switch_keys` is refused while a worker is alive or a lease is held under the current prefix: its holder may be
  working, and would be invisible under the new one.
- Fences belong to the store, not to a key, so a fence from before a switch is lower than every later one; on Redis
  Cluster, if the clocks of its nodes agree.

Does not promise to notice a process without workers and leases, such as an idle API. That process notices the switch
within `POLL_S` (`end_at_switch`) and exits.

Clock: the event loop's, for the pauses.
"""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.aio.client import Locks
from holdfast.core.name_prefixes import DEFAULT
from holdfast.errors import BadInput, HoldfastError, LockBusy
from holdfast.leases.inspection import Inspection
from holdfast.plane.bus.registered_bus import NAME as BUS
from holdfast.plane.db.ports import Database, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.fleet.registry import Workers
from holdfast.plane.locks.registry import FAMILIES

POLL_S: Final = 5.0

_NAME: Final = "keys"
_FIELD: Final = "names.keys"
_GET: Final = sql("meta_get")
_KEEP: Final = sql("meta_insert")
_PUT: Final = sql("meta_put")
_END: Final = "end all processes of the plane first; the lease of one that was killed ends with its TTL"


async def check_keys(database: Database, prefix: str, *, serving: bool = False) -> None:
    """Return if this is the prefix of the plane, else raise `BadInput`. `serving`: it may be set."""

    async def keep(tx: Tx) -> str | None:
        if await _known(tx) is None:
            await tx.query(_KEEP, {"name": _NAME, "value": prefix})
        return await _known(tx)  # another process may have been faster

    known = await database.read(_known)
    if known is None and serving:
        known = await database.write(keep)
    _check(known, prefix)


async def end_at_switch(database: Database, prefix: str) -> None:
    """Wait until the plane has another prefix, then raise `BadInput`: this process must exit."""
    while True:  # ends with the process
        await asyncio.sleep(POLL_S)
        try:
            known = await database.read(_known)
        except HoldfastError:
            continue  # read again after the next pause
        _check(known, prefix)


async def switch_keys(database: Database, locks: Locks, workers: Workers, prefix: str) -> str | None:
    """Change the prefix of the plane. Returns the prefix before, if there was one.

    `LockBusy` while a worker is alive or a lease is held under the prefix before.
    """
    known = await database.read(_known)
    if known in (None, prefix):
        await _put(database, prefix)
        return known
    await _check_idle(locks, workers, known)
    await _put(database, prefix)  # no process starts under the old prefix any more
    try:
        await _check_idle(locks, workers, known)
    except BaseException:
        await _put(database, known)
        raise
    return known


def _check(known: str | None, prefix: str) -> None:
    if known in (None, prefix):
        return
    raise BadInput(
        _FIELD,
        f"the keys of this plane begin with {known}:, and here they would begin with {prefix}:, which excludes no "
        "other process of it",
        f'write keys = "{known}" below [names] in holdfast.toml, or set $HOLDFAST_NAMES_KEYS={known}; a plane is given '
        "another prefix, while none of its processes runs, by holdfast up --switch-keys",
    )


async def _check_idle(locks: Locks, workers: Workers, prefix: str) -> None:
    for held in await _held(locks, prefix):
        left = "" if held.remaining is None else f" for {held.remaining:.0f} s"
        raise LockBusy(f"{held.key} is held by {held.owner}{left}; {_END}", key=held.key, holder=held.owner)
    for worker in await workers.live():
        raise LockBusy(f"the worker {worker.worker} is alive; {_END}", holder=worker.worker)


async def _held(locks: Locks, prefix: str) -> list[Inspection]:
    """Leases of the plane that are held."""
    found = []
    for family in FAMILIES.values():
        head, item, _ = family.under(prefix).pattern.partition("{")
        found += [each for each in await locks.list(head, 10) if item or each.key == head]
    return found


async def _put(database: Database, prefix: str) -> None:
    await database.write(lambda tx: tx.query(_PUT, {"name": _NAME, "value": prefix}))


async def _known(tx: Tx) -> str | None:
    """The prefix of the plane; None: it has had no process yet."""
    for name in (_NAME, BUS):
        if rows := await tx.query(_GET, {"name": name}):
            return str(rows[0]["value"]) if name == _NAME else DEFAULT
    return None
