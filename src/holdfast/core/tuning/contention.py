"""Who wanted a key, when, and for how long: arrivals read off the records of a history, for a replay.

A process that met a held lock records each attempt (`BUSY`), and once more when it has it (`GRANTED`). Its first
attempt since it last had the key is when it came. A grant without such an attempt came when its request was sent. What
is not recorded (an attempt that gave up for good, a hold without an end) is left out: nothing is made up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.core.history.events import EventKind, Record
from holdfast.core.tuning.retry import Arrival

_ENDS = frozenset({EventKind.RELEASED, EventKind.RELEASE_REFUSED, EventKind.RELEASE_FAILED, EventKind.LOST})


@dataclass(slots=True)
class Contention:
    """The arrivals of one family, and how often a lock was found held."""

    arrivals: list[Arrival]
    busy: int = 0

    @property
    def recorded(self) -> bool:
        """Whether attempts in vain were recorded at all."""
        return self.busy > 0


class ContentionReader:
    """Reads records in the order of time, once."""

    def __init__(self) -> None:
        self._came: dict[tuple[str, str], int] = {}
        self._open: dict[tuple[str, int], tuple[str, int, int]] = {}  # key and fence: family, came, had it
        self._found: dict[str, Contention] = {}

    def note(self, record: Record) -> None:
        """One more record."""
        if record.kind is EventKind.BUSY:
            self._came.setdefault((record.key, record.owner), record.at_ns)
            self._of(record.family).busy += 1
        elif record.kind is EventKind.GRANTED and record.fence is not None:
            sent = record.at_ns if record.began_ns is None else record.began_ns
            came = min(self._came.pop((record.key, record.owner), sent), sent)
            self._open[record.key, record.fence] = record.family, came, record.at_ns
        elif record.kind in _ENDS and record.fence is not None:
            begun = self._open.pop((record.key, record.fence), None)
            if begun is not None:
                family, came, had = begun
                self._of(family).arrivals.append(Arrival(came, record.key, max(0, record.at_ns - had)))

    def read(self, records: Iterable[Record]) -> dict[str, Contention]:
        """All of them, by family."""
        for record in records:
            self.note(record)
        return self.found()

    def found(self) -> dict[str, Contention]:
        """What was read up to now, by family."""
        return self._found

    def _of(self, family: str) -> Contention:
        return self._found.setdefault(family, Contention([]))
