"""A workflow definition: steps, their dependencies, and their error handling. Values only.

`validation` checks a definition; `advance` decides the next steps of a run. A definition never changes: a run keeps its
own, and a changed definition is another version.

Texts may contain expressions, `${ steps.fetch.output.amount > 100 }`; see `expressions`.
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
    """The kind of a step."""

    JOB = "job"  # a job for the workers of its topic
    APPROVAL = "approval"  # waits for an approval
    DELAY = "delay"  # waits for a time
    TRANSFORM = "transform"  # computes a value
    WORKFLOW = "workflow"  # a run of another workflow


@dataclass(frozen=True, slots=True)
class StepRetry:
    """How often a failed step is retried, and after which delay: `initial` x `multiplier` ^ (attempt - 1), capped."""

    retries: int = 0  # r gives r + 1 attempts
    initial_ns: int = 1_000_000_000
    multiplier: float = 2.0
    cap_ns: int = 60_000_000_000
    jitter: float = 0.1  # at most this fraction of the delay is added, so that a fan-out does not retry in phase


@dataclass(frozen=True, slots=True)
class Step:
    """One step. Fields of other kinds keep their defaults."""

    name: str
    kind: StepKind
    after: tuple[str, ...] = ()  # the steps to wait for
    join: int | None = None  # how many of them must go well; None: all
    cancel_rest: bool = False  # stop those that the join did not need
    when: str | None = None  # an expression; false: the step is skipped and its dependents continue
    on_error: str | None = None  # the step that runs if this one fails permanently; its success recovers this one
    recover: bool = True  # False: the failure remains even if the handler succeeds, and the run fails
    retry: StepRetry = field(default_factory=StepRetry)
    timeout_ns: int | None = None  # of one attempt; of an approval: how long it waits for a decision
    risk: str | None = None  # the class that decides about lock errors; None: the workflow's
    input: Any = None  # a template: payload of a job, input of a workflow, value of a transform
    output: Any = None  # a template over `result` that makes the step's output; None: the result itself

    topic: str | None = None  # job
    priority: int = 0  # job
    workflow: str | None = None  # workflow: its name
    version: int | None = None  # workflow: None is the newest when the step starts
    delay_ns: int | None = None  # delay: this long
    until: str | None = None  # delay: an expression that gives a Unix time in seconds
    message: Any = None  # approval: a template, for the approver

    for_each: Any = None  # an expression or a list: one child for each item, which is `item` (and `index`) in its texts
    max_parallel: int | None = None  # concurrent children; None: all


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a run."""

    type: str = "any"  # any, text, number, whole, flag, list, table
    required: bool = True
    default: Any = None


@dataclass(frozen=True, slots=True)
class Workflow:
    """A definition."""

    name: str
    steps: Mapping[str, Step]
    version: int = 0  # set when it is stored
    inputs: Mapping[str, Input] | None = None  # None: any input
    output: Any = None  # a template over `steps`; None: the outputs of the steps without dependents
    timeout_ns: int | None = None  # of the whole run
    risk: str = "low"
    description: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def handlers(self) -> frozenset[str]:
        """The steps that run only when another step fails."""
        return frozenset(step.on_error for step in self.steps.values() if step.on_error is not None)

    def risk_of(self, name: str) -> str:
        """The risk class of a step."""
        return self.steps[name].risk or self.risk
