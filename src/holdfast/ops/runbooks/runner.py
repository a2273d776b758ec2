"""Runs a runbook: gathers the evidence, each step within its time limit, and judges it.

    report = await run(RUNBOOKS["snapshot-leader"], scene)

A runbook about a job or run that was called without an id first searches for suspects. The steps about the whole plane
run meanwhile, once. Then all suspects are examined concurrently.

Promises: a report when the time limit has ended, or twice that if suspects must be found first. A failing step is
evidence. Clock: the wall clock, for people; the event loop's, for the limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from holdfast.errors import HoldfastError
from holdfast.ops.runbooks.model import (
    Argument,
    Case,
    Evidence,
    ExaminedSuspect,
    Fact,
    Finding,
    NextStep,
    NotGiven,
    Runbook,
    RunbookReport,
    RunbookStep,
    judged,
)
from holdfast.ops.runbooks.sources import RunbookContext
from holdfast.ops.runbooks.suspects import GatheredEvidence, chosen, concluded
from holdfast.runtime.gather import together
from holdfast.types import NS

Ended = Callable[[str], None]
Answers = Mapping[str, Fact | Exception]


async def run(runbook: Runbook, scene: RunbookContext, ended: Ended | None = None) -> RunbookReport:
    """Gather the evidence, and judge it. `ended` receives the name of each finished step."""
    argument = runbook.argument
    if argument is not None and argument.name not in scene.arguments:
        report = await _searched(runbook, argument, scene, ended)
    else:
        report = await _told(runbook, scene, ended)
    findings, suspects = _exact(report.findings, scene), tuple(_exactly(each, scene) for each in report.suspects)
    return replace(report, findings=findings, suspects=suspects)


async def _told(runbook: Runbook, scene: RunbookContext, ended: Ended | None) -> RunbookReport:
    at_ns = scene.clock.now().wall
    evidence: dict[str, Evidence] = {}
    for batch in [[step] for step in runbook.steps] if runbook.in_order else [list(runbook.steps)]:
        evidence |= await _gathered(batch, scene, ended)
    case = Case(evidence, scene.settings, at_ns, scene.arguments)
    return RunbookReport(runbook, scene.arguments, at_ns, tuple(evidence.values()), judged(runbook, case))


async def _searched(runbook: Runbook, argument: Argument, scene: RunbookContext, ended: Ended | None) -> RunbookReport:
    case = Case({}, scene.settings, scene.clock.now().wall)
    whole = [step for step in runbook.steps if not step.about]
    found = await _gathered([*argument.searches, *whole], scene, ended)
    searches = tuple(found[each.name] for each in argument.searches)
    own = await _about(
        list(chosen(searches).suspects), [step for step in runbook.steps if step.about], argument, scene, ended
    )
    gathered = GatheredEvidence(searches, {step.name: found[step.name] for step in whole}, own)
    return concluded(runbook, argument, case, gathered, scene.given.window)


async def _gathered(steps: Sequence[RunbookStep], scene: RunbookContext, ended: Ended | None) -> dict[str, Evidence]:
    """The evidence of all steps, gathered concurrently."""
    answers = await together({step.name: _bound(step, scene) for step in steps}, _limit_ns(steps, scene), ended)
    return {step.name: _evidence(step, scene, answers[step.name]) for step in steps}


async def _about(
    ids: Sequence[str], steps: Sequence[RunbookStep], argument: Argument, scene: RunbookContext, ended: Ended | None
) -> dict[str, dict[str, Evidence]]:
    """The evidence of all steps for each id, gathered concurrently."""
    calls: dict[tuple[str, str], Callable[[], Awaitable[Answers]]] = {}
    for step in steps:
        if step.at_once is not None and ids:
            calls[step.name, ""] = _bound_at_once(step.at_once, scene, ids)
        else:
            calls |= {(step.name, each): _bound_alone(step, scene.about(argument.name, each), each) for each in ids}
    answers = await together(calls, _limit_ns(steps, scene), None if ended is None else _last(calls, ended))
    found: dict[str, dict[str, Evidence]] = {each: {} for each in ids}
    for step in steps:
        for each in ids:
            answer = answers.get((step.name, each), answers.get((step.name, "")))
            said = answer if isinstance(answer, Exception) or answer is None else answer.get(each)
            missing = NotGiven(f"nothing was found about {each}")
            found[each][step.name] = _evidence(step, scene, missing if said is None else said)
    return found


def _last(calls: Iterable[tuple[str, str]], ended: Ended) -> Callable[[tuple[str, str]], None]:
    """Reports a step when it is finished for the last of the ids."""
    left = Counter(name for name, _ in calls)

    def one(call: tuple[str, str]) -> None:
        left[call[0]] -= 1
        if not left[call[0]]:
            ended(call[0])

    return one


def _limit_ns(steps: Sequence[RunbookStep], scene: RunbookContext) -> int:
    lasts = max((step.lasts(scene) for step in steps if step.lasts is not None), default=0.0)
    return round((scene.given.patience + lasts) * NS)


def _bound(step: RunbookStep, scene: RunbookContext) -> Callable[[], Awaitable[Fact]]:
    return lambda: step.gather(scene)


def _bound_alone(step: RunbookStep, scene: RunbookContext, id: str) -> Callable[[], Awaitable[Answers]]:
    async def look() -> Answers:
        return {id: await step.gather(scene)}

    return look


def _bound_at_once(
    look: Callable[[RunbookContext, Sequence[str]], Awaitable[Mapping[str, Fact]]],
    scene: RunbookContext,
    ids: Sequence[str],
) -> Callable[[], Awaitable[Answers]]:
    return lambda: look(scene, ids)


def _exact(findings: Iterable[Finding], scene: RunbookContext) -> tuple[Finding, ...]:
    """Findings whose commands contain the inspected stores, so that they can be typed unchanged."""
    return tuple(
        replace(each, next=tuple(NextStep(scene.exact(step.command), step.why) for step in each.next))
        for each in findings
    )


def _exactly(suspect: ExaminedSuspect, scene: RunbookContext) -> ExaminedSuspect:
    return replace(suspect, findings=_exact(suspect.findings, scene))


def _evidence(step: RunbookStep, scene: RunbookContext, answer: Fact | Exception) -> Evidence:
    at_ns, where = scene.clock.now().wall, scene.where(step.source)
    if not isinstance(answer, Exception):
        return Evidence(step.name, step.source, where, at_ns, answer)
    if isinstance(answer, NotGiven):
        return Evidence(step.name, step.source, "", at_ns, None, f"{answer}: {step.source.fix}", given=False)
    # An unexpected error is a bug of ours, but in an incident it must fail only one step.
    named = str(answer) if isinstance(answer, HoldfastError) else f"{type(answer).__name__}: {answer}"
    return Evidence(step.name, step.source, where, at_ns, None, named)
