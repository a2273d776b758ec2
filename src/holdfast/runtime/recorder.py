"""The first observer: counts, measures, writes the log lines that operators search for, and passes records on.

It is called on every path, so it never raises: an observer of the user's that fails is logged once and left alone.
No record contains a token, and so nothing written here does.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from holdfast.core.histogram import Distribution, Histogram, Measure, MeasuredOutcome
from holdfast.core.history.events import EventKind, Record
from holdfast.core.log_rate import LogRate
from holdfast.core.ports import Clock, Gauging, Observer
from holdfast.core.tuning.burstiness import BUCKET_NS, Burst, Burstiness
from holdfast.core.tuning.fleet_burstiness import GroupCounts
from holdfast.errors import LOCK_NOT_OWNED
from holdfast.flows.acquire import noun
from holdfast.flows.log import LEFT_OUT, shown_fields
from holdfast.runtime.thread_runtime import Mutex

_log = logging.getLogger("holdfast")

LINES_MAX = 50  # of one kind and family, in a window of `core.log_rate`
FAMILIES_MAX = 100
DENIED_MAX = 100  # risk classes that were refused to run without the store
_BUSY = EventKind.BUSY  # looked up for every lease, and slowly on an enum of Python 3.11
OTHER = "other"  # all others are counted together: a program has put an id into the name of a family or class


class Recorder:
    """Counts records by kind and family, logs what a person should know, and tells the user's observers."""

    def __init__(self, observers: Sequence[Observer] = (), clock: Clock | None = None) -> None:
        self._observers = list(observers)
        self._listening = bool(self._observers)
        self._clock = clock
        self._busy = Burstiness()
        self._busy_groups = GroupCounts()
        self._broken: set[int] = set()
        self._rates: dict[tuple[EventKind, str], LogRate] = {}
        self._mutex = Mutex()
        self._gauging: list[Gauging] = [each for each in observers if isinstance(each, Gauging)]
        self._by_label: Counter[tuple[EventKind, str, str]] = Counter()
        self._measures: dict[tuple[Measure, str, MeasuredOutcome], Distribution] = {}
        self._waiters: dict[object, str] = {}
        self._families: dict[str, str] = {}
        self._denied: set[str] = set()
        self._items: dict[str, tuple[str, str]] = {}
        self.counts: Counter[tuple[EventKind, str]] = Counter()

    def tally(self, kind: EventKind, family: str) -> bool:
        """Count it. True when the record is wanted: by an observer, or by the log."""
        self.counts[kind, self._families.get(family) or self.label(family)] += 1
        if kind is _BUSY and self._clock is not None:
            now = self._clock.now()
            self._busy.note(now.mono)
            self._busy_groups.note(now.wall)
        return self._listening or kind in _LINES

    def note(self, record: Record) -> None:
        """Something that was counted happened like this."""
        if record.kind in _LABELLED:
            label, family = record.reason if record.kind is EventKind.LOST else record.risk, self.label(record.family)
            with self._mutex:  # alerts compare this count between replicas, so not one of it is lost to a race
                if record.kind is EventKind.DENIED:
                    label = self._denied_label(label or "")
                self._by_label[record.kind, family, label or ""] += 1
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

    def measured(self, measure: Measure, family: str, outcome: MeasuredOutcome, ns: int) -> None:
        """Something took so long."""
        found = self._measures.get((measure, family, outcome)) or self._distribution(measure, family, outcome)
        found.observe(ns)
        if self._gauging:
            for each in self._gauging:
                self._guarded("an observer", id(each), partial(each.measured, measure, family, outcome, ns))

    def _distribution(self, measure: Measure, family: str, outcome: MeasuredOutcome) -> Distribution:
        key = measure, self.label(family) if family else "", outcome
        return self._measures.get(key) or self._measures.setdefault(key, Distribution())

    def gauge(self, observer: Gauging) -> None:
        """Add an observer of durations."""
        self._gauging = [*self._gauging, observer]

    def gauge_no_more(self, observer: Gauging) -> None:
        """No longer tell them."""
        self._gauging = [each for each in self._gauging if each is not observer]

    def waits(self, who: object, family: str) -> None:
        """A caller waits. Callers are kept in a dictionary: a counter that misses one decrement would stay wrong.

        Entering and leaving are single steps of the interpreter, so threads need no lock for it.
        """
        self._waiters[who] = family

    def waits_no_more(self, who: object) -> None:
        """A caller does not wait any more, or never did."""
        self._waiters.pop(who, None)

    def waiters(self) -> Counter[str]:
        """How many callers wait, by family."""
        return Counter(map(self.label, list(self._waiters.values())))

    def measures(self) -> dict[tuple[Measure, str, MeasuredOutcome], Histogram]:
        """What was measured, by family (of those that have a label) and outcome."""
        return {key: found.read() for key, found in list(self._measures.items())}

    def label(self, family: str) -> str:
        """What a family is called in metrics. The first hundred keep their name; the rest share one."""
        known = self._families.get(family)
        if known is None:
            known = family if len(self._families) < FAMILIES_MAX else OTHER
            if known is not OTHER:  # the names of the others are not kept: there may be any number of them
                self._families[family] = known
        return known

    def _denied_label(self, risk: str) -> str:
        """What a class that was denied is called in metrics: like families, the first few keep their name.

        A class that runs without the store stands in the policy, and there are as many as its writer made. One that is
        denied may be any word: what the policy does not know fails closed.
        """
        if len(self._denied) < DENIED_MAX:
            self._denied.add(risk)
        return risk if risk in self._denied else OTHER

    def by_risk(self, kind: EventKind) -> dict[tuple[str, str], int]:
        """How often a fallback or refusal happened (`FELL_BACK`, `EXERCISED`, `DENIED`), by family and risk class."""
        return self._labelled(kind)

    def by_reason(self) -> dict[tuple[str, str], int]:
        """How many leases were lost, by family and reason."""
        return self._labelled(EventKind.LOST)

    def _labelled(self, kind: EventKind) -> dict[tuple[str, str], int]:
        with self._mutex:
            return {(family, label): count for (each, family, label), count in self._by_label.items() if each is kind}

    def forked(self) -> None:
        """In a child process: a thread that counted at that moment does not exist here, and holds nothing up."""
        self._mutex = Mutex()
        self._waiters = {}  # nor do those that waited

    def busy_burst(self, width_ns: int = BUCKET_NS) -> Burst:
        """How bunched the lock-busy retries of the last minute were, counted in buckets of this width."""
        return Burst(0, 0.0, 0.0) if self._clock is None else self._busy.read(self._clock.now().mono, width_ns)

    def busy_groups(self) -> dict[str, int]:
        """How many lock-busy retries fell into each group of intervals (`core.tuning.fleet_burstiness`)."""
        return self._busy_groups.read()

    def total(self, kind: EventKind) -> int:
        """How often something happened, over all families."""
        return sum(count for (counted, _), count in list(self.counts.items()) if counted is kind)

    def _guarded(self, who: str, identity: int, act: Callable[[], None]) -> None:
        """A log handler or an observer that fails must not cost a lease; its failure is logged once."""
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
        kind = record.kind, self.label(record.family)
        rate = self._rates.get(kind) or self._rates.setdefault(kind, LogRate(LINES_MAX))
        entry = rate.enter(record.at_ns)
        if entry.left_out:
            told = {"holdfast": {"of": text}, "holdfast_kind": str(record.kind)}
            _log.log(level, LEFT_OUT, entry.left_out, extra=told)
        if not entry.written:
            return
        reason = "abandoned" if record.reason == "unconfirmed" else record.reason
        line = text.format(noun=noun(record.family))
        fields = {
            "key": record.key,
            **self._item(record),
            "family": record.family,
            "fence": record.fence,
            "reason": reason,
            "error": record.detail or (LOCK_NOT_OWNED if record.kind is EventKind.RELEASE_REFUSED else ""),
        }
        extra = {"holdfast": fields, "holdfast_event": line, "holdfast_kind": str(record.kind)}
        _log.log(level, "%s: %s", line, shown_fields(fields), extra=extra)

    def _item(self, record: Record) -> dict[str, str]:
        prefix, name = self._items.get(record.family, ("", ""))
        return {name: record.key[len(prefix) :]} if name and record.key.startswith(prefix) else {}


_LABELLED = frozenset({EventKind.FELL_BACK, EventKind.EXERCISED, EventKind.DENIED, EventKind.LOST})

_LINES: dict[EventKind, tuple[int, str]] = {
    EventKind.UNCONFIRMED: (logging.WARNING, "{noun} renewal failed"),
    EventKind.WARNED: (logging.WARNING, "{noun} is close to being lost"),
    EventKind.LOST: (logging.ERROR, "{noun} lost"),
    EventKind.RELEASE_REFUSED: (logging.WARNING, "lock release skipped: token mismatch"),
    EventKind.RELEASE_FAILED: (logging.WARNING, "{noun} release failed"),
    EventKind.FELL_BACK: (
        logging.ERROR,
        "distributed lock failed — using local-only lock; a cross-replica race is possible",
    ),
    # Not the text of a real fallback: a search of the log for that must not find this.
    EventKind.EXERCISED: (logging.WARNING, "exercise of the error policy: {noun} runs under the local lock only"),
    EventKind.PROMOTED: (logging.WARNING, "{noun} promoted: the store is back and the lease is full again"),
    EventKind.DENIED: (logging.ERROR, "{noun} denied: the store is down and the risk class fails closed"),
    EventKind.POLICY: (logging.WARNING, "error policy switched"),
    EventKind.FORCED: (logging.WARNING, "{noun} released by force"),
}
