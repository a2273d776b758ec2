"""Locks for the length of one transaction: where the leases lie in the very file that is being written.

No other connection can write to the file while the transaction is open. So a lock that is needed in it, and no longer,
is acquired by checking that the key is free, and by raising the fence; when the transaction ends, so does the lock. No
row is written for it, and nothing is left behind by a process that dies on the way.

Promises: refuses a key that any process holds; the fences are above every earlier one of the file; a dead process's row
is removed, as a grant would have done. All of it is undone with the transaction.

Clock: that of the leases; see `sqlite_judge`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from holdfast.core.ports import Query
from holdfast.stores.sqlite.liveness import LivenessJudge
from holdfast.stores.sqlite.schema import sql
from holdfast.types import Busy

_HOLDERS: Final = sql("holders")
_DROP: Final = sql("drop")
_RAISE: Final = sql("raise_fences")


class SqliteTransactionLocks:
    """See `ports.TransactionLocks`."""

    def __init__(self, judge: LivenessJudge) -> None:
        self._judge = judge

    async def take(self, query: Query, keys: Sequence[str], *, unheard: bool = False) -> list[int | Busy]:
        """See `ports.TransactionLocks`."""
        now = self._judge.now()
        busy: dict[str, Busy] = {}
        dead: list[str] = []
        for row in () if unheard else await query(_HOLDERS, {"keys": json.dumps(keys)}):
            expiry = (row["clock"], row["process"], row["expires_ns"], row["expires_wall_ns"])
            if (left := self._judge.left_ns(expiry, now)) > 0:
                busy[row["key"]] = Busy(row["key"], row["owner"], left)
            else:
                dead.append(row["key"])
        for key in dead:
            await query(_DROP, {"key": key})
        free = len(keys) - len(busy)
        if not free:
            return [busy[key] for key in keys]
        raised = await query(_RAISE, {"fence_floor": now.wall // 1000, "more": free - 1})
        fence = raised[0]["value"] - free
        answers: list[int | Busy] = []
        for key in keys:
            if key in busy:
                answers.append(busy[key])
            else:
                fence += 1
                answers.append(fence)
        return answers
