"""Workflows defined in Python: steps are added to a `Flow`, and `build` returns the definition.

    flow = workflow("refund", risk="high", inputs={"id": "text"})
    fetch = flow.job("fetch", topic="crm.fetch", input={"id": "${ input.id }"})
    agreed = flow.approval("agreed", after=fetch, message="Refund ${ steps.fetch.output.amount }?", timeout="1h")
    flow.job("pay", topic="bank.pay", after=agreed, input=fetch.output, retries=3)
    refund = flow.build()

or the same as a decorated function, whose name then refers to the definition:

    @workflow("refund", risk="high", inputs={"id": "text"})
    def refund(flow: Flow) -> None: ...

Promises: nothing is checked before `build`, which raises `BadWorkflow` with all problems. The result is the same as
from a file: one document, parsed by the same rules (`plane.workflows.core.definition_codec`,
`plane.workflows.core.validation`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

from holdfast.errors import BadInput
from holdfast.plane.workflows.core.definition import StepKind, StepRetry, Workflow
from holdfast.plane.workflows.core.definition_codec import duration
from holdfast.plane.workflows.core.problems import BadWorkflow, DefinitionProblem
from holdfast.plane.workflows.core.validation import judge_document
from holdfast.types import Duration

Time: TypeAlias = Duration | str  # seconds, a timedelta, or a text such as "1h30m"
InputType: TypeAlias = Literal["any", "text", "number", "whole", "flag", "list", "table"]


class InputOptions(TypedDict, total=False):
    """One input of a run. It may be left out if it has a default or `required: False`."""

    type: InputType
    required: bool
    default: Any


class FlowOptions(TypedDict, total=False):
    """Options of a workflow."""

    description: str
    risk: str  # the class that decides about lock errors; default "low"
    timeout: Time | None  # of a whole run
    inputs: Mapping[str, InputType | InputOptions] | None  # None: any input
    output: Any  # a template over `steps`
    labels: Mapping[str, str]


class StepOptions(TypedDict, total=False):
    """Options of every step."""

    after: Before  # the steps to wait for
    join: int | None  # how many of them must succeed; None: all
    cancel_rest: bool  # stop those that the join did not need
    when: str | bool | None  # an expression; if it is false, the step is skipped and its dependents continue
    on_error: Ref | str | None  # the step that runs if this one fails permanently
    recover: bool  # False: even if that step succeeds, this one counts as failed and the run fails
    risk: str | None  # None: the workflow's
    for_each: str | Sequence[Any] | None  # one child for each item, which expressions read as `item` (and `index`)
    max_parallel: int | None  # concurrent children; None: all


class WorkOptions(StepOptions, total=False):
    """Options of steps that wait for others: jobs, approvals and child runs."""

    output: Any  # a template over `result`; None: the result itself
    timeout: Time | None  # of one attempt; of an approval: how long it waits for a decision
    retries: int | StepRetry  # how often a failed step is retried; see `retrying`


class Ref:
    """A step of a flow, for references."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def output(self) -> str:
        """The expression that reads its output."""
        return f"${{ steps{_key(self.name)}.output }}"

    def __repr__(self) -> str:
        return f"<step {self.name!r}>"


Before: TypeAlias = Ref | str | Sequence[Ref | str]


class Flow:
    """A workflow under construction."""

    def __init__(self, name: str, **options: Unpack[FlowOptions]) -> None:
        self._document: dict[str, Any] = {"name": name, **options, "steps": {}}
        self._repeated: list[str] = []

    @property
    def name(self) -> str:
        """The name of the workflow."""
        return str(self._document["name"])

    def job(
        self, name: str, *, topic: str, input: Any = None, priority: int = 0, **options: Unpack[WorkOptions]
    ) -> Ref:
        """A job for the workers of a topic; `input` is the template of its payload."""
        return self._step(name, StepKind.JOB, {"topic": topic, "input": input, "priority": priority}, options)

    def approval(self, name: str, *, message: Any = None, **options: Unpack[WorkOptions]) -> Ref:
        """A wait for an approval; `message` is a template for the approver."""
        return self._step(name, StepKind.APPROVAL, {"message": message}, options)

    def delay(
        self, name: str, time: Time | None = None, *, until: str | None = None, **options: Unpack[StepOptions]
    ) -> Ref:
        """A delay for a time, or until one: an expression that returns a Unix time in seconds."""
        return self._step(name, StepKind.DELAY, {"delay": time, "until": until}, options)

    def transform(self, name: str, value: Any, **options: Unpack[StepOptions]) -> Ref:
        """A computed value; `value` is its template."""
        return self._step(name, StepKind.TRANSFORM, {"input": value}, options)

    def run_of(
        self, name: str, *, workflow: str, version: int | None = None, input: Any = None, **options: Unpack[WorkOptions]
    ) -> Ref:
        """A run of another workflow; None: its newest version when the step starts."""
        return self._step(name, StepKind.WORKFLOW, {"workflow": workflow, "version": version, "input": input}, options)

    def returns(self, output: Any) -> None:
        """The output of a run: a template over `steps`."""
        self._document["output"] = output

    def build(self) -> Workflow:
        """The definition, or `BadWorkflow` with all problems."""
        workflow, found = judge_document(self._document)
        repeated = [
            DefinitionProblem(("steps", name), "there are two steps of this name", "rename one")
            for name in self._repeated
        ]
        problems = [*repeated, *found]
        if problems:
            raise BadWorkflow(f"workflow {self._document['name']!r}", problems)
        return workflow

    def __call__(self, define: Callable[[Flow], Any]) -> Workflow:
        """Call a function that adds the steps, and build. Its return value, if any, is the output of the workflow."""
        if not callable(define):
            raise BadInput("function", f"{define!r} is not a function", "decorate a def that takes the flow")
        output = define(self)
        if output is not None:
            self.returns(output)
        return self.build()

    def _step(self, name: str, kind: StepKind, own: Mapping[str, Any], options: Mapping[str, Any]) -> Ref:
        written: dict[str, Any] = {"kind": kind.value, **own, **options}
        if written.get("after") is not None:
            after = written["after"]
            written["after"] = [_name(each) for each in (after if isinstance(after, list | tuple) else [after])]
        if written.get("on_error") is not None:
            written["on_error"] = _name(written["on_error"])
        retries = written.pop("retries", None)
        written["retry"] = _retry_document(retries) if isinstance(retries, StepRetry) else retries
        steps = self._document["steps"]
        if name in steps:
            self._repeated.append(name)
        steps[name] = {field: value for field, value in written.items() if value is not None}
        return Ref(name)


def workflow(name: str, **options: Unpack[FlowOptions]) -> Flow:
    """Start a workflow: add its steps to the flow and `build` it, or decorate a function that adds them."""
    return Flow(name, **options)


def retrying(
    retries: int, *, initial: Time = 1, multiplier: float = 2.0, cap: Time = 60, jitter: float = 0.1
) -> StepRetry:
    """The retry delays of a step: `initial`, then multiplied by `multiplier` each time, at most `cap`."""
    return StepRetry(retries, duration(initial, "initial"), multiplier, duration(cap, "cap"), jitter)


def _retry_document(retry: StepRetry) -> dict[str, Any]:
    return {
        "retries": retry.retries,
        "initial": f"{retry.initial_ns}ns",
        "multiplier": retry.multiplier,
        "cap": f"{retry.cap_ns}ns",
        "jitter": retry.jitter,
    }


def _name(step: object) -> object:
    return step.name if isinstance(step, Ref) else step


def _key(name: str) -> str:
    plain = name.isascii() and name.isidentifier() and "__" not in name
    return f".{name}" if plain else f'["{name}"]'
