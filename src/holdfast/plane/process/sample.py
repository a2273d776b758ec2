"""A sample workload, so that there is something to see: agents of three tenants plan, research, call tools, and report.

Nothing here is real, and nothing leaves the process: durations are drawn; a tool sometimes answers that it is busy, and
the attempt is made again; a site that is hardly ever up makes jobs use up their attempts, and once in a while a goal is
beyond any agent: both become dead letters; now and then a user cancels a job. A workflow
does all of it in one run, and asks before it sends anything: a manager answers after a while, and not always kindly;
only these approvals are decided. It runs only on request (`holdfast up --sample`). While many jobs wait, no more are
submitted, and finished jobs are kept for an hour, unless the settings differ.

Clock: the event loop's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from holdfast.core.ports import Entropy
from holdfast.errors import BackendError, LockBusy
from holdfast.flows.log import log_event
from holdfast.plane.app import App
from holdfast.plane.approvals.rules import ApprovalConflict, ApprovalVerdict
from holdfast.plane.model.outcome import Fatal
from holdfast.plane.model.records import Submission
from holdfast.plane.service.service import Caller, Service
from holdfast.plane.settings.settings import Settings
from holdfast.plane.worker.context import BlockingContext, Context
from holdfast.plane.workflows.builder import Flow, retrying
from holdfast.plane.workflows.core.run import RunStatus
from holdfast.runtime.system import SystemEntropy
from holdfast.types import MS, NS

TENANTS: Final = ("acme", "globex", "initech")
CALLER: Final = Caller("sample")
MANAGER: Final = Caller("sample-manager")
WAITING_MAX: Final = 40
RUNS_MAX: Final = 5
KEPT_S: Final = 3600.0

_GOALS: Final = (
    "summarise the incident of last night",
    "draft an answer to the customer",
    "compare three suppliers",
    "find the slow query",
    "write the release notes",
)
_TOOLS: Final = ("search", "browser", "sql", "calendar", "mail")
_DOWN: Final = "fax"
_PRIORITIES: Final = (0, 0, 0, 10, -10)

_chance: Final = SystemEntropy()
_log: Final = logging.getLogger("holdfast.plane.sample")

app: Final = App("sample")


@app.job("agent.plan", timeout=30)
async def plan(payload: Mapping[str, Any], *, ctx: Context) -> dict[str, Any]:
    """Think about a goal, in a few steps."""
    goal = str(payload["goal"])
    if payload.get("impossible"):
        await _think(200, 600)
        raise Fatal(f"no plan can {goal}")
    steps = 2 + _chance.below(3)
    for step in range(steps):
        ctx.progress(f"step {step + 1} of {steps}", step / steps)
        await _think(200, 900)
    return {"goal": goal, "tools": [_TOOLS[_chance.below(len(_TOOLS))] for _ in range(steps)]}


@app.job("agent.research", max_concurrency=2, timeout=60)
async def research(payload: Mapping[str, Any], *, ctx: Context) -> dict[str, Any]:
    """Read for a while: there is always one of these to look at while it runs."""
    pages = 4 + _chance.below(5)
    for page in range(pages):
        ctx.progress(f"page {page + 1} of {pages}", page / pages)
        await _think(700, 1300)
    return {"goal": payload["goal"], "pages": pages}


@app.job("agent.tool", pool="tools", max_concurrency=4, timeout=30)
def call_tool(payload: Mapping[str, Any], *, ctx: BlockingContext) -> dict[str, Any]:
    """Call a tool, in a thread. One call in six is told to come again; one site is hardly ever up."""
    ctx.cancelled.wait((300 + _chance.below(1500)) / 1000)
    if payload["tool"] == _DOWN and _chance.below(4):
        raise TimeoutError(f"{_DOWN} did not answer within 1 s")
    if _chance.below(6) == 0:
        raise ConnectionError(f"{payload['tool']} answered 503, try again")
    return {"tool": payload["tool"], "rows": _chance.below(200)}


@app.job("agent.report", timeout=30)
async def report(payload: Mapping[str, Any], *, ctx: Context) -> str:
    """Write down what was found."""
    ctx.progress("writing", 0.5)
    await _think(300, 1500)
    return f"report on: {payload['goal']}"


@app.workflow("briefing", description="Plan, call the tools of the plan, ask, and report", inputs={"goal": "text"})
def briefing(flow: Flow) -> str:
    """What the jobs above do one by one, as one run."""
    planned = flow.job("plan", topic="agent.plan", input={"goal": "${ input.goal }"})
    tools = flow.job(
        "tools",
        topic="agent.tool",
        after=planned,
        for_each="${ steps.plan.output.tools }",
        max_parallel=2,
        input={"tool": "${ item }"},
        retries=retrying(5, initial=0.5, cap=5),
    )
    asked = flow.approval("ask", after=tools, message="send the report on ${ input.goal }?", timeout="10m")
    return flow.job("report", topic="agent.report", after=asked, input={"goal": "${ input.goal }"}).output


def kept_briefly(settings: Settings) -> Settings:
    """The same settings, with what is over forgotten soon, unless they say themselves how long it is kept."""
    cleanup = settings.cleanup
    jobs = KEPT_S if settings.origin("cleanup.jobs").kind == "default" else cleanup.jobs
    letters = KEPT_S if settings.origin("cleanup.letters").kind == "default" else cleanup.letters
    runs = KEPT_S if settings.origin("cleanup.runs").kind == "default" else cleanup.runs
    return replace(settings, cleanup=replace(cleanup, jobs=jobs, letters=letters, runs=runs))


async def feed(service: Service, entropy: Entropy = _chance) -> None:
    """Submit jobs, a few each second, until cancelled. A store that does not answer is waited for."""
    regretted: str | None = None
    while True:  # ends by cancellation
        try:
            counts = await service.counts(CALLER, finished=False)
            if sum(counts.values()) < WAITING_MAX:
                for each in _batch(entropy):
                    job, _ = await service.submit(CALLER, each, pool=app.functions[each.topic].pool)
                    if each.topic == "agent.research" and entropy.below(6) == 0:
                        regretted = job.id
                        break
            if regretted is not None and entropy.below(4) == 0:
                await service.cancel(CALLER, regretted, reason="the customer has changed their mind")
                regretted = None
            await _brief(service, entropy)
        except BackendError as error:
            log_event(_log, logging.WARNING, "the sample workload waits", error)
        await asyncio.sleep((500 * MS + entropy.below(NS)) / NS)


async def _brief(service: Service, entropy: Entropy) -> None:
    """Start a run once in a while, and decide about one that waits, if it is ours."""
    flows = service.flows
    live = await flows.store.counts()
    if sum(live.values()) < RUNS_MAX and entropy.below(6) == 0:
        tenant, goal = TENANTS[entropy.below(len(TENANTS))], _GOALS[entropy.below(len(_GOALS))]
        await flows.start(CALLER, briefing.name, {"goal": goal}, tenant=tenant)
    if live.get(RunStatus.WAITING) and entropy.below(6) == 0:
        waiting = await flows.approvals(CALLER, limit=20)
        ours = next((each for each in waiting.items if each.requested_by == CALLER.name), None)
        if ours is not None:
            verdict, note = (
                (ApprovalVerdict.REJECT, "not in this tone") if entropy.below(5) == 0 else (ApprovalVerdict.APPROVE, "")
            )
            try:
                await flows.decide(MANAGER, ours.job, verdict, note=note)
            except (ApprovalConflict, LockBusy) as error:  # another approver was quicker
                log_event(_log, logging.INFO, "the manager of the sample comes again later", error, job=ours.job)


def _batch(entropy: Entropy) -> list[Submission]:
    """The jobs that one user submits together."""
    tenant = TENANTS[min(entropy.below(4), len(TENANTS) - 1)]
    goal = _GOALS[entropy.below(len(_GOALS))]
    priority = _PRIORITIES[entropy.below(len(_PRIORITIES))]
    tools = [_DOWN if entropy.below(30) == 0 else _TOOLS[entropy.below(len(_TOOLS))] for _ in range(entropy.below(3))]
    payloads: list[tuple[str, dict[str, Any]]] = [
        ("agent.plan", {"goal": goal, "impossible": entropy.below(60) == 0}),
        *(("agent.tool", {"tool": tool}) for tool in tools),
    ]
    if entropy.below(2):
        payloads.append(("agent.report", {"goal": goal}))
    if entropy.below(6) == 0:
        payloads.append(("agent.research", {"goal": goal}))
    return [
        Submission(topic, payload, tenant, priority=priority, submitted_by=CALLER.name) for topic, payload in payloads
    ]


async def _think(least_ms: int, most_ms: int) -> None:
    await asyncio.sleep((least_ms + _chance.below(most_ms - least_ms)) / 1000)
