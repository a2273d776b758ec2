"""A workflow as somebody defines it: steps, what they wait for, and what happens when they fail. Values only.

Whether a definition makes sense is judged by `workflow_rules`; what a run of it does next, by `advancing`. A definition
never changes: a run keeps the one it was started with, and a changed one is another version.

Texts may hold expressions, `${ steps.fetch.output.amount > 100 }`; `expressions` says what they can do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

STEPS_MAX: Final = 500
FAN_OUT_MAX: Final = 1_000
DEPTH_MAX: Final = 8  # of workflows that start workflows
RETRIES_MAX: Final = 100


class StepKind(StrEnum):
    """What a step does."""

    JOB = "job"  # a job for the workers of its topic
    APPROVAL = "approval"  # waits until somebody approves or rejects
    DELAY = "delay"  # waits for a time
    TRANSFORM = "transform"  # computes a value from what is there
    WORKFLOW = "workflow"  # a run of another workflow


@dataclass(frozen=True, slots=True)
class StepRetry:
    """How often a failed step is tried again, and after how long: `initial` x `multiplier` ^ (attempt - 1), capped."""

    retries: int = 0  # r gives r + 1 attempts
    initial_ns: int = 1_000_000_000
    multiplier: float = 2.0
    cap_ns: int = 60_000_000_000
    jitter: float = 0.1  # at most this part of the delay is added, so that a fan-out does not retry in phase


@dataclass(frozen=True, slots=True)
class Step:
    """One step. Fields that do not belong to its kind are left at their defaults."""

    name: str
    kind: StepKind
    after: tuple[str, ...] = ()  # steps that come first
    join: int | None = None  # how many of them must have gone well; None: all
    cancel_rest: bool = False  # stop those of them that the join did not need
    when: str | None = None  # an expression; false: the step is skipped, and its dependents go on
    on_error: str | None = None  # the step that runs if this one fails for good; if that goes well, this is recovered
    recover: bool = True  # False: the failure stands even if its handler goes well, and the run fails
    retry: StepRetry = field(default_factory=StepRetry)
    timeout_ns: int | None = None  # of one attempt; of an approval: how long it waits for somebody
    risk: str | None = None  # the class that decides about lock errors; None: the workflow's
    input: Any = None  # a template: payload of a job, input of a workflow, value of a transform
    output: Any = None  # a template over `result` that makes the step's output; None: the result itself

    topic: str | None = None  # job
    priority: int = 0  # job
    workflow: str | None = None  # workflow: its name
    version: int | None = None  # workflow: None is the newest when the step starts
    delay_ns: int | None = None  # delay: this long
    until: str | None = None  # delay: an expression that gives a Unix time in seconds
    message: Any = None  # approval: a template, for whoever decides

    for_each: Any = None  # an expression or a list: one child for each item, which is `item` (and `index`) in its texts
    max_parallel: int | None = None  # children at once; None: all


@dataclass(frozen=True, slots=True)
class Input:
    """One value that a run is started with."""

    type: str = "any"  # any, text, number, whole, flag, list, table
    required: bool = True
    default: Any = None


@dataclass(frozen=True, slots=True)
class Workflow:
    """A definition."""

    name: str
    steps: Mapping[str, Step]
    version: int = 0  # given when it is stored
    inputs: Mapping[str, Input] | None = None  # None: anything goes
    output: Any = None  # a template over `steps`; None: the outputs of the steps that nobody waits for
    timeout_ns: int | None = None  # of the whole run
    risk: str = "low"
    description: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def handlers(self) -> frozenset[str]:
        """The steps that run only when another fails."""
        return frozenset(step.on_error for step in self.steps.values() if step.on_error is not None)

    def risk_of(self, name: str) -> str:
        """The risk class of a step."""
        return self.steps[name].risk or self.risk
