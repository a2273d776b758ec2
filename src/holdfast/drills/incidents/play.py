"""Plays one incident: injects the fault, and checks that `holdfast why` and an alert name its cause.

An incident counts as found if its finding is the first one of the report within the time limit, with the wanted text
and command, the report demands an action, and it has no all-clear.

Clock: monotonic, for durations and time limits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from holdfast.drills.env.processes import Stalled
from holdfast.drills.incidents.fleet import LIMIT_S, IncidentFleet, present, total, until
from holdfast.drills.incidents.holdfast_commands import HoldfastCommands
from holdfast.drills.incidents.local_servers import IncidentServers
from holdfast.drills.model import DrillClaim, IncidentScore, ReportFigure, SceneRecord

ACTION: Final = 3
"""The exit code of a report that demands an action."""

Telling = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class AlertSignal:
    """An alert, and the part of its condition that the metrics of the fleet must fulfill."""

    alert: str
    metric: str  # without the prefix
    holds: Callable[[float], bool]
    labels: tuple[tuple[str, str], ...] = ()
    summed: bool = False  # the sum over processes and series; else any of them


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident."""

    name: str
    story: str  # what happens, in one sentence
    finding: str  # its name; the first of the report
    play: Callable[[IncidentPlay], None]
    signal: AlertSignal | None = None
    severity: str = "act"


class IncidentPlay:
    """One incident while it is played."""

    def __init__(
        self,
        incident: Incident,
        directory: Path,
        commands: HoldfastCommands,
        servers: IncidentServers,
        tell: Telling,
    ) -> None:
        self.incident = incident
        self.servers = servers
        self.scene = SceneRecord(incident.name, incident.story, None)
        self.directory = directory
        self._commands = commands
        self._tell = tell
        self._stack = ExitStack()
        self._began = time.monotonic()
        self._fleets: list[IncidentFleet] = []
        self._top = ""

    def fleet(self, **places: str) -> IncidentFleet:
        """A fleet, until the incident ends."""
        made = IncidentFleet(self.directory / f"fleet-{len(self._fleets) + 1}", self._commands, **places)
        self._stack.callback(made.close)
        self._fleets.append(made)
        return made

    def began(self, what: str) -> None:
        """The fault is there: its time counts from now."""
        self._began = time.monotonic()
        self._tell(what)

    def found(self, *texts: str, command: str = "") -> dict[str, Any]:
        """Wait until the incident is named first, with these texts and a command; the finding. Then the alert."""
        fleet, wanted = self._fleets[-1], self.incident.finding
        report: dict[str, Any] = {}

        def named() -> bool:
            report.clear()
            report.update(fleet.why())
            first = report["findings"][0]
            self._top = first["rule"]
            return first["rule"] == wanted and all(each in first["sentence"] for each in texts)

        try:
            until(named, f"the finding {wanted!r}")
        except Stalled as stalled:
            told = "; ".join(f"{each['rule']}: {each['sentence']}" for each in report.get("findings", ()))
            wish = " with " + ", ".join(map(repr, texts)) if texts else ""
            raise Stalled(f"{stalled}{wish}; the report is: {told}") from stalled
        seconds = time.monotonic() - self._began
        first: dict[str, Any] = report["findings"][0]
        self._tell(f"{first['rule']}: {first['sentence']}")
        self.scene.figures.append(ReportFigure("finding", first["sentence"], first["rule"]))
        typed = [each["command"] for each in first["next"]]
        self.scene.figures += [ReportFigure("next", each) for each in typed]
        clear = [each["rule"] for each in report["findings"] if each["rule"] == "fine"]
        demanded = report["code"] == ACTION or self.incident.severity != "act"
        self.claim(
            "the report demands an action and gives no all-clear",
            demanded and first["severity"] == self.incident.severity and not clear,
            f"exit {report['code']}, {first['severity']}, {len(clear)} all-clears",
        )
        if command:
            self.claim("the next command is complete", command in typed, f"{command!r} among {typed}")
        else:
            self.claim("there is a next command", bool(typed), str(typed))
        self._alert(fleet)
        self.scene.score = IncidentScore(
            self.incident.name, self.ok, self._top, seconds, self.incident.signal.alert if self.incident.signal else ""
        )
        return first

    def _alert(self, fleet: IncidentFleet) -> None:
        signal = self.incident.signal
        if signal is None:
            return
        labels, seen = dict(signal.labels), list[float]()

        def raised() -> bool:
            pages = fleet.metrics()
            name = f"holdfast_{signal.metric}"
            seen[:] = [total(pages, name, **labels)] if signal.summed else present(pages, name, **labels)
            return any(map(signal.holds, seen))

        try:
            until(raised, "the condition of the alert", LIMIT_S / 2)
        except Stalled:
            self.claim(f"the condition of {signal.alert} holds", kept=False, seen=f"{signal.metric} is {seen}")
        else:
            self.claim(f"the condition of {signal.alert} holds", kept=True, seen=f"{signal.metric} is {seen}")

    def over(self, rule: str | None = None) -> None:
        """After the repair: wait until the finding is gone."""
        fleet, gone = self._fleets[-1], self.incident.finding if rule is None else rule
        until(lambda: gone not in [each["rule"] for each in fleet.why()["findings"]], f"the end of {gone!r}")
        self.claim("the finding is gone after the repair", kept=True, seen=gone)

    def claim(self, text: str, kept: bool, seen: str) -> None:
        """Record a condition that must hold."""
        self.scene.claims.append(DrillClaim(text, kept, seen))

    @property
    def ok(self) -> bool:
        """Whether all conditions held so far."""
        return all(each.kept for each in self.scene.claims)

    def on(self, manager: Any) -> Any:
        """Enter a context until the incident ends."""
        return self._stack.enter_context(manager)

    def end(self) -> None:
        """End all processes."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Stalled):
            self.claim("the cause is named", kept=False, seen=str(error))
        if self.scene.score is None or not self.ok:
            self.scene.score = IncidentScore(self.incident.name, found=False, top=self._top, seconds=None, alert="")
        self._stack.close()


def played(
    incident: Incident, directory: Path, commands: HoldfastCommands, servers: IncidentServers, tell: Telling
) -> SceneRecord:
    """Play one incident; its record with the score. `Misconfigured`: it cannot be played here."""
    play = IncidentPlay(incident, directory, commands, servers, tell)
    try:
        with play:
            incident.play(play)
    except Stalled as stalled:
        tell(str(stalled))
    return play.scene
