"""The number that is added to revisions to make fences, so that an emptied cluster does not begin again at 1.

A fence is `base + revision`, where the revision is that of the transaction which granted the lease. Within the history
of a cluster the base stays, and revisions rise. The base is the wall clock in µs of the client that wrote it first. A
cluster makes less than one revision in a µs, so a base that is written later is above all fences from before.

Promises: a transaction that compares the base grants no fence from an older one. A restored backup is noticed if it got
another cluster id, as a restore with a new `--initial-cluster-token` does. Does not promise the order of fences across
a restore with the same id: delete the key, or restore with `--bump-revision`. See docs/etcd.md.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.core.ports import Clock
from holdfast.errors import Misconfigured, Timeout, Unavailable
from holdfast.stores.etcd.gateway import Gateway
from holdfast.stores.etcd.messages import Message, TransactionAnswer, created, get, put, same_value

_FORM: Final = re.compile(rb"(\d{1,18}) (\d{1,20})")
_ROUNDS: Final = 8


class Base(NamedTuple):
    """The base as it is stored, and as a number."""

    stored: bytes
    number: int


class FenceBase:
    """The base of one cluster and prefix. It is read once, and checked by every transaction that grants."""

    def __init__(self, key: bytes, clock: Clock) -> None:
        self._key = key
        self._clock = clock
        self._known: Base | None = None

    async def get(self, gateway: Gateway, deadline_ns: int) -> Base:
        """The base, which is written first if there is none."""
        if self._known is None:
            try:
                self._known = await self._read(gateway, deadline_ns)
            except Timeout as error:  # no lock depends on this request
                raise Unavailable(f"the base of fences was not read: {error}") from error
        return self._known

    def forget(self) -> None:
        """It has changed."""
        self._known = None

    async def _read(self, gateway: Gateway, deadline_ns: int) -> Base:
        for _ in range(_ROUNDS):
            found = await gateway.transact(deadline_ns, (), [get(self._key)])
            stored = found.parts[0].first
            if stored is None:
                unchanged, least = created(self._key, "EQUAL", 0), 0
            else:
                form = _FORM.fullmatch(stored.value)
                if form is None or int(form[1]) > FENCE_MAX // 2:
                    raise Misconfigured(
                        f"etcd: the key {self._key.decode()} holds no base of fences; delete it (fences go on from the "
                        "clock), or use another prefix in the url"
                    )
                if form[2].decode() == found.cluster:
                    return Base(stored.value, int(form[1]))
                unchanged, least = same_value(self._key, stored.value), int(form[1]) + found.revision
            await self._write(gateway, deadline_ns, unchanged, least, found)
        raise Unavailable("etcd: the base of fences changed again and again")

    async def _write(
        self, gateway: Gateway, deadline_ns: int, unchanged: Message, least: int, found: TransactionAnswer
    ) -> None:
        """Write a new base, unless another client has."""
        number = max(self._clock.now().wall // 1000, least)
        value = f"{number} {found.cluster}".encode()
        await gateway.transact(deadline_ns, [unchanged], [put(self._key, value, 0)])
