"""Plays incidents as the scenes of a drill."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from holdfast.drills.env.stage import DrillHarness
from holdfast.drills.incidents.holdfast_commands import OwnProcesses
from holdfast.drills.incidents.incident_list import INCIDENTS, incident
from holdfast.drills.incidents.local_servers import IncidentServers
from holdfast.drills.incidents.play import played
from holdfast.errors import Misconfigured

NAMED: Final = frozenset(each.name for each in INCIDENTS)


def play(stage: DrillHarness, names: Sequence[str]) -> None:
    """Play these incidents, or all. One that cannot be played here is left out, with the reason."""
    chosen = [incident(each) for each in names] or list(INCIDENTS)
    with IncidentServers() as servers:
        for number, each in enumerate(chosen, 1):
            if not stage.left_s:
                stage.cannot.append(f"{each.name}: the time of the drill was over")
                continue
            title = each.name if len(chosen) == 1 else f"{each.name} ({number} of {len(chosen)})"
            stage.report(title, each.story)
            try:
                scene = played(
                    each,
                    stage.directory / each.name,
                    OwnProcesses(),
                    servers,
                    partial(stage.report, title),
                )
            except Misconfigured as reason:
                stage.cannot.append(f"{each.name}: {reason}")
                continue
            stage.scenes.append(scene)
            score = scene.score
            if score is not None and score.seconds is not None:
                stage.report(title, f"named after {score.seconds:.1f} s", good=True)
            for claim in scene.claims:
                if not claim.kept:
                    stage.report(title, f"{claim.text}: {claim.seen}", good=False)
