"""Runs runbooks on what a test has made, as the command does, within a limit, and looks for tokens in what is said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from holdfast.core.ports import Clock
from holdfast.ops.runbooks import RUNBOOKS
from holdfast.ops.runbooks.model import Finding, RunbookReport
from holdfast.ops.runbooks.runner import run
from holdfast.ops.runbooks.sources import RunbookContext, RunbookOptions
from holdfast.ops.runbooks.text import report_lines
from holdfast.plane.settings.settings import Settings
from holdfast.runtime.system import SystemClock
from holdfast.testing.conformance.check import expect_no_token
from support.tokens.record import recording

LIMIT_S = 60.0


async def reported(
    name: str, settings: Settings, *, clock: Clock | None = None, secrets: Iterable[str] = (), **given: Any
) -> RunbookReport:
    """The report of a runbook. `JOB` and `RUN` among what is given are its arguments."""
    arguments: dict[str, str] = {key: given.pop(key) for key in ("JOB", "RUN") if key in given}
    scene = RunbookContext(
        settings,
        RunbookOptions(**{"spacing": 0.2, "patience": 20.0, **given}).check(),
        arguments,
        clock or SystemClock(),
    )
    tokens = list(secrets)
    async with asyncio.timeout(LIMIT_S):
        with recording(tokens.append):
            try:
                report = await run(RUNBOOKS[name], scene)
            finally:
                await scene.close()
    said = json.dumps(report.as_dict()) + "\n".join(line.text for line in report_lines(report))
    for token in tokens:
        expect_no_token(said, token, name)
    return report


def found(report: RunbookReport, rule: str) -> Finding:
    """One of its findings."""
    named = {each.rule: each for each in report.findings}
    assert rule in named, "\n".join(line.text for line in report_lines(report))
    return named[rule]
