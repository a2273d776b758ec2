"""A sample workload, so that there is something to see: agents of a few tenants that plan, call tools, and report.

Nothing here is real, and nothing leaves the process: durations are drawn, a tool sometimes answers that it is busy (and
the attempt is made again), and once in a while a goal is beyond any agent (and becomes a dead letter). It runs only
when somebody asks for it, and does not run ahead: while many jobs wait, no more are submitted.

Clock: the event loop's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from holdfast.errors import BackendError
from holdfast.plane.app import App
from holdfast.plane.context import BlockingContext, Context
from holdfast.plane.model import Submission
from holdfast.plane.outcome import Fatal
from holdfast.plane.service import Caller, Service
from holdfast.ports import Entropy
from holdfast.runtime.system import SystemEntropy
from holdfast.types import MS, NS

TENANTS: Final = ("acme", "globex", "initech")
CALLER: Final = Caller("sample")
WAITING_MAX: Final = 40

_GOALS: Final = (
    "summarise the incident of last night",
    "draft an answer to the customer",
    "compare three suppliers",
    "find the slow query",
    "write the release notes",
)
_TOOLS: Final = ("search", "browser", "sql", "calendar", "mail")
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


@app.job("agent.tool", pool="tools", max_concurrency=4, timeout=30)
def call_tool(payload: Mapping[str, Any], *, ctx: BlockingContext) -> dict[str, Any]:
    """Call a tool, in a thread. One call in eight is told to come again."""
    ctx.cancelled.wait((300 + _chance.below(1500)) / 1000)
    if _chance.below(8) == 0:
        raise ConnectionError(f"{payload['tool']} answered 503, try again")
    return {"tool": payload["tool"], "rows": _chance.below(200)}


@app.job("agent.report", timeout=30)
async def report(payload: Mapping[str, Any], *, ctx: Context) -> str:
    """Write down what was found."""
    ctx.progress("writing", 0.5)
    await _think(300, 1500)
    return f"report on: {payload['goal']}"


async def feed(service: Service, entropy: Entropy = _chance) -> None:
    """Submit jobs, a few each second, until cancelled. A store that does not answer is waited for."""
    while True:  # ends by cancellation
        try:
            counts = await service.counts(CALLER, finished=False)
            if sum(counts.values()) < WAITING_MAX:
                for each in _batch(entropy):
                    await service.submit(CALLER, each, pool=app.functions[each.topic].pool)
        except BackendError as error:
            _log.warning("the sample workload waits: %s", error)
        await asyncio.sleep((500 * MS + entropy.below(NS)) / NS)


def _batch(entropy: Entropy) -> list[Submission]:
    """What one user asks for at once."""
    tenant = TENANTS[min(entropy.below(4), len(TENANTS) - 1)]
    goal = _GOALS[entropy.below(len(_GOALS))]
    priority = _PRIORITIES[entropy.below(len(_PRIORITIES))]
    payloads: list[tuple[str, dict[str, Any]]] = [
        ("agent.plan", {"goal": goal, "impossible": entropy.below(40) == 0}),
        *(("agent.tool", {"tool": _TOOLS[entropy.below(len(_TOOLS))]}) for _ in range(entropy.below(3))),
    ]
    if entropy.below(2):
        payloads.append(("agent.report", {"goal": goal}))
    return [
        Submission(topic, payload, tenant, priority=priority, submitted_by=CALLER.name) for topic, payload in payloads
    ]


async def _think(least_ms: int, most_ms: int) -> None:
    await asyncio.sleep((least_ms + _chance.below(most_ms - least_ms)) / 1000)
