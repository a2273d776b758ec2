"""The first observer: counts, writes the log lines that operators search for, and passes records on.

It is called on every path, so it never raises: an observer of the user's that fails is logged once and left alone.
No record contains a token, and so nothing written here does.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from holdfast.core.history import Kind, Record
from holdfast.flows.acquiring import noun
from holdfast.ports import Observer

_log = logging.getLogger("holdfast")


class Witness:
    """Counts records by kind and family, logs what a person should know, and tells the user's observers."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = list(observers)
        self._broken: set[int] = set()
        self.counts: Counter[tuple[Kind, str]] = Counter()

    def tally(self, kind: Kind, family: str) -> bool:
        """Count it. True when it is worth a record: somebody listens, or a person should read of it."""
        self.counts[kind, family] += 1
        return bool(self._observers) or kind in _LINES

    def note(self, record: Record) -> None:
        """Something that was counted happened like this."""
        if record.kind in _LINES:
            _write(record)
        for observer in self._observers:
            try:
                observer.note(record)
            except Exception:  # noqa: BLE001 - observers are the user's, and may raise anything
                if id(observer) not in self._broken:
                    self._broken.add(id(observer))
                    _log.exception("an observer failed; its further failures are not logged")

    def total(self, kind: Kind) -> int:
        """How often something happened, over all families."""
        return sum(count for (counted, _), count in self.counts.items() if counted is kind)


_LINES: dict[Kind, tuple[int, str]] = {
    Kind.UNCONFIRMED: (logging.WARNING, "{noun} renewal failed"),
    Kind.WARNED: (logging.WARNING, "{noun} is close to being lost"),
    Kind.LOST: (logging.ERROR, "{noun} lost"),
    Kind.RELEASE_REFUSED: (logging.WARNING, "lock release skipped: token mismatch"),
    Kind.RELEASE_FAILED: (logging.WARNING, "{noun} release failed"),
    Kind.FELL_BACK: (
        logging.ERROR,
        "distributed lock failed — using local-only lock; a cross-replica race is possible",
    ),
    Kind.PROMOTED: (logging.WARNING, "{noun} promoted: the store is back and the lease is full again"),
    Kind.DENIED: (logging.ERROR, "{noun} denied: the store is down and the risk class fails closed"),
    Kind.POLICY: (logging.WARNING, "error policy switched"),
    Kind.FORCED: (logging.WARNING, "{noun} released by force"),
}


def _write(record: Record) -> None:
    level, text = _LINES[record.kind]
    if not _log.isEnabledFor(level):
        return
    reason = "abandoned" if record.reason == "unconfirmed" else record.reason
    line = text.format(noun=noun(record.family))
    fields = {
        "key": record.key,
        "family": record.family,
        "fence": record.fence,
        "reason": reason,
        "error": record.detail,
    }
    shown = " ".join(f"{name}={value}" for name, value in fields.items() if value not in (None, ""))
    _log.log(level, "%s: %s", line, shown, extra={"holdfast": fields})
