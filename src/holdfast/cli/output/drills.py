"""Terminal output of a drill: progress lines, and a table with the verdict at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.status import Status
from rich.table import Table
from rich.text import Text

from holdfast.cli.output.screen import cell, out, plain_table, printable, put_json
from holdfast.drills.catalog import Drill
from holdfast.drills.model import DrillPlan, DrillVerdict, Guard, IncidentScore, JudgedScene, scores
from holdfast.drills.report.html import summary
from holdfast.drills.verdict.leases import plain, slowest
from holdfast.types import NS

_GUARDS = {Guard.OFF: "off", Guard.WRITES: "writes only", Guard.ON: "on", None: "-"}
_STORIES_MAX = 3


class DrillProgress:
    """Prints progress as text, or one JSON object per line."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json
        self._console = out()
        self._began = time.monotonic()
        self._scene = ""
        self._status: Status | None = None
        self._drill: Drill | None = None
        self._plan: DrillPlan | None = None

    def begin(self, drill: Drill, plan: DrillPlan) -> None:
        """Remember the drill. It is announced with its first scene, so a refused drill is not announced."""
        self._drill, self._plan = drill, plan

    def _announce(self) -> None:
        drill, plan, self._drill = self._drill, self._plan, None
        if drill is None or plan is None:
            return
        if self._json:
            put_json({"event": "begin", "drill": drill.name, "ttl": plan.ttl_s, "slo": plan.slo_seconds})
            return
        head = f"Drill {drill.name}: {drill.shows}"
        self._console.print(Text(printable(head), style="bold"), soft_wrap=True)
        told = f"TTL {plan.ttl_s:g} s, takeover SLO {plan.slo_seconds:g} s; Ctrl-C ends it, and cleans up"
        self._console.print(Text(told, style="dim"))
        if self._console.is_terminal:
            self._status = self._console.status("starting …")
            self._status.start()

    def __call__(self, scene: str, text: str, *, good: bool | None = None) -> None:
        """Print one event."""
        self._announce()
        at = time.monotonic() - self._began
        if self._json:
            put_json({"event": "step", "at": round(at, 3), "scene": scene, "text": text, "good": good})
            return
        if scene != self._scene:
            self._scene = scene
            self._console.print()
            self._console.print(Text(f"{scene}", style="bold cyan"))
        if self._status is not None:
            self._status.update(f"{scene} …")
        style = {None: "", True: "green", False: "bold red"}[good]
        line = Text.assemble((f"  {at:6.1f} s  ", "dim"), (printable(text), style))
        self._console.print(line, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()


def _scene_table(verdict: DrillVerdict) -> Table:
    table = plain_table(
        *(("SCENE", "left"), ("GUARDS", "left"), ("LOST", "right"), ("REFUSED", "right")),
        *(("SLOWEST TAKEOVER", "right"), ("SLO", "right"), ("VERDICT", "left")),
    )
    for each in verdict.judged:
        table.add_row(*_row(each))
    return table


def _score_table(found: Sequence[IncidentScore]) -> Table:
    table = plain_table(
        *(("INCIDENT", "left"), ("FOUND", "left"), ("FIRST FINDING", "left"), ("SECONDS", "right"), ("ALERT", "left"))
    )
    for each in found:
        word = cell("yes", "green") if each.found else cell("no", "bold red")
        took = "-" if each.seconds is None else f"{each.seconds:.1f}"
        table.add_row(cell(each.incident), word, cell(each.top or "-"), cell(took), cell(each.alert or "-"))
    return table


def put_verdict(verdict: DrillVerdict, report: str | None) -> None:
    """Print the table, the lost updates, and the verdict in a sentence."""
    console = out()
    found = scores([each.scene for each in verdict.judged])
    table = _score_table(found) if found else _scene_table(verdict)
    console.print()
    console.print(table)
    for each in verdict.judged:
        for story in [plain(loss) for loss in each.losses if loss.rule == "C6"][:_STORIES_MAX]:
            console.print()
            console.print(
                Text.assemble((f"{each.scene.title}: ", "bold"), (printable(story), "yellow")), soft_wrap=True
            )
        for problem in each.problems:
            console.print()
            console.print(
                Text.assemble((f"{each.scene.title}: ", "bold"), (printable(problem), "bold red")), soft_wrap=True
            )
    console.print()
    for left in verdict.cannot:
        console.print(Text(f"left out: {printable(left)}", style="yellow"), soft_wrap=True)
    word, style = ("PASS", "bold green") if verdict.passed else ("FAIL", "bold red")
    console.print(Text.assemble((f"{word}  ", style), summary(verdict)), soft_wrap=True)
    console.print(Text(f"      {verdict.took_s:.0f} s on {printable(verdict.store)}", style="dim"), soft_wrap=True)
    if report is not None:
        console.print(Text(f"      report: {printable(report)}", style="dim"), soft_wrap=True)


def _row(judged: JudgedScene) -> tuple[Text, ...]:
    scene, found = judged.scene, slowest(judged.scene.takeovers)
    took = "-" if found is None else f"{found.took_ns / NS:.2f} s"
    slo = "-" if found is None else f"{found.slo_ns / NS:g} s"
    if not judged.ok:
        word = cell("FAILED", "bold red")
    else:
        word = cell("loss shown", "yellow") if scene.bites else cell("as expected", "green")
    lost = cell(str(judged.lost), "yellow" if judged.lost else "")
    return cell(scene.title), cell(_GUARDS[scene.guard]), lost, cell(str(judged.refused)), cell(took), cell(slo), word
