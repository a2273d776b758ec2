"""What a host of a simulated world observes, as the checkers need it: at true time."""

from __future__ import annotations

from holdfast.core.history.events import EventKind, Record
from holdfast.testing.sim.environment.loop import SimLoop
from holdfast.testing.sim.environment.store import Note


class Restamper:
    """The observer of one host. Its records come with the host's own wall clock; checkers need true time."""

    def __init__(self, loop: SimLoop, note: Note, name: str) -> None:
        self._loop = loop
        self._note = note
        self._name = name
        self.asked_ns: dict[tuple[str, int], int] = {}

    def note(self, record: Record) -> None:
        """See `ports.Observer`."""
        if record.kind is EventKind.FORCED:
            return  # seen at the store, at the right moment
        began = None if record.fence is None else self.asked_ns.get((record.key, record.fence))
        self._note(  # field by field: `replace` costs more than all the rest of it
            Record(
                record.kind,
                self._loop.now_ns,
                record.key,
                family=record.family,
                owner=self._name,
                fence=record.fence,
                risk=record.risk,
                reason=record.reason,
                began_ns=began,
                ok=record.ok,
                detail=record.detail,
                facts=record.facts,
            )
        )
