"""The first observer: counts, writes the log lines that operators search for, and passes records on.

It is called on every path, so it never raises: an observer of the user's that fails is logged once and left alone.
No record contains a token, and so nothing written here does.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from holdfast.core.burstiness import Burst, Burstiness
from holdfast.core.history import Kind, Record
from holdfast.flows.acquiring import noun
from holdfast.ports import Clock, Observer
from holdfast.types import NS

_log = logging.getLogger("holdfast")

LINES_MAX = 50  # of one kind and family
WINDOW_NS = 10 * NS


class Witness:
    """Counts records by kind and family, logs what a person should know, and tells the user's observers."""

    def __init__(self, observers: Sequence[Observer] = (), clock: Clock | None = None) -> None:
        self._observers = list(observers)
        self._clock = clock
        self._busy = Burstiness()
        self._broken: set[int] = set()
        self._windows: dict[tuple[Kind, str], _Window] = {}
        self._mutex = threading.Lock()
        self._by_risk: Counter[tuple[Kind, str, str]] = Counter()
        self._items: dict[str, tuple[str, str]] = {}
        self.counts: Counter[tuple[Kind, str]] = Counter()

    def tally(self, kind: Kind, family: str) -> bool:
        """Count it. True when it is worth a record: somebody listens, or a person should read of it."""
        self.counts[kind, family] += 1
        if kind is Kind.BUSY and self._clock is not None:
            self._busy.note(self._clock.now().mono)
        return bool(self._observers) or kind in _LINES

    def note(self, record: Record) -> None:
        """Something that was counted happened like this."""
        if record.kind in _BY_RISK:
            with self._mutex:  # alerts compare this count between replicas, so not one of it is lost to a race
                self._by_risk[record.kind, record.family, record.risk or ""] += 1
        if record.kind in _LINES:
            self._guarded("the log", id(_log), lambda: self._write(record))
        for observer in self._observers:
            self._guarded("an observer", id(observer), partial(observer.note, record))

    def name_items(self, patterns: Mapping[str, str]) -> None:
        """Show the id in a key as a field of its own: `{"workflow.run": "holdfast:wf:run:lock:{run}"}` gives `run=42`.

        Patterns with more than one place, or with text behind it, are left out.
        """
        for family, pattern in patterns.items():
            prefix, mark, rest = pattern.partition("{")
            if mark and rest.endswith("}") and "{" not in rest:
                self._items[family] = prefix, rest[:-1]

    def by_risk(self, kind: Kind) -> dict[tuple[str, str], int]:
        """How often a fallback happened (`FELL_BACK`, `EXERCISED`), by family and risk class."""
        with self._mutex:
            return {(family, risk): count for (each, family, risk), count in self._by_risk.items() if each is kind}

    def forked(self) -> None:
        """In a child process: a thread that counted at that moment does not exist here, and holds nothing up."""
        self._mutex = threading.Lock()

    def busy_burst(self) -> Burst:
        """How bunched the lock-busy retries of the last minute were."""
        return Burst(0, 0.0, 0.0) if self._clock is None else self._busy.read(self._clock.now().mono)

    def total(self, kind: Kind) -> int:
        """How often something happened, over all families."""
        return sum(count for (counted, _), count in self.counts.items() if counted is kind)

    def _guarded(self, who: str, identity: int, act: Callable[[], None]) -> None:
        """A log handler or an observer that fails must not cost anybody a lease; it is mentioned once."""
        try:
            act()
        except Exception:  # noqa: BLE001 - they are the user's, and may raise anything
            if identity not in self._broken:
                self._broken.add(identity)
                with contextlib.suppress(Exception):  # the log itself may be what is broken
                    _log.exception("%s failed; its further failures are not logged", who)

    def _write(self, record: Record) -> None:
        """One line, unless there were very many of the same kind just now: an outage must not drown its own log."""
        level, text = _LINES[record.kind]
        if not _log.isEnabledFor(level):
            return
        window = self._windows.setdefault((record.kind, record.family), _Window())
        written, left_out = window.enter(record.at_ns)
        if left_out:
            _log.log(level, "%d more like the following were not logged", left_out)
        if not written:
            return
        reason = "abandoned" if record.reason == "unconfirmed" else record.reason
        line = text.format(noun=noun(record.family))
        fields = {
            "key": record.key,
            **self._item(record),
            "family": record.family,
            "fence": record.fence,
            "reason": reason,
            "error": record.detail,
        }
        shown = " ".join(f"{name}={value}" for name, value in fields.items() if value not in (None, ""))
        _log.log(level, "%s: %s", line, shown, extra={"holdfast": fields})

    def _item(self, record: Record) -> dict[str, str]:
        prefix, name = self._items.get(record.family, ("", ""))
        return {name: record.key[len(prefix) :]} if name and record.key.startswith(prefix) else {}


class _Window:
    """How many lines of one kind and family were written lately. Races cost a line more or less, and nothing else."""

    __slots__ = ("_began_ns", "_left_out", "_written")

    def __init__(self) -> None:
        self._began_ns = 0
        self._written = 0
        self._left_out = 0

    def enter(self, now_ns: int) -> tuple[bool, int]:
        """Whether to write one more, and how many were left out before it."""
        if not 0 <= now_ns - self._began_ns < WINDOW_NS:
            left_out, self._began_ns, self._written, self._left_out = self._left_out, now_ns, 0, 0
        else:
            left_out = 0
        if self._written >= LINES_MAX:
            self._left_out += 1
            return False, 0
        self._written += 1
        return True, left_out


_BY_RISK = frozenset({Kind.FELL_BACK, Kind.EXERCISED})

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
    # Other words than a real one: whoever searches the log for that must not find this.
    Kind.EXERCISED: (logging.WARNING, "exercise of the error policy: {noun} runs under the local lock only"),
    Kind.PROMOTED: (logging.WARNING, "{noun} promoted: the store is back and the lease is full again"),
    Kind.DENIED: (logging.ERROR, "{noun} denied: the store is down and the risk class fails closed"),
    Kind.POLICY: (logging.WARNING, "error policy switched"),
    Kind.FORCED: (logging.WARNING, "{noun} released by force"),
}
