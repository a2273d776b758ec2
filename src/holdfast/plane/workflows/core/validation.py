"""Validation of a definition, and of the input of a run. Pure.

Promises: a definition without problems can be run: every step can start, or be skipped, and every expression can be
parsed and reads only values that exist by then. All problems are found together, each with its position and a fix.
Facts that a definition cannot know are left to the run: which topics have workers, which workflows exist, and the
values.

Handlers are the steps that some `on_error` names. A handler may handle several steps, and may itself have a handler and
an `after`. It must not wait for a step that it handles, nor for a dependent of such a step, nor may that step wait for
it: each would wait for the other (`graph`).

Expressions are checked for syntax and for the names that they read:

| Text | reads, besides `input` and `run` |
|---|---|
| `when`, `for_each` of a step | `steps` |
| its `input`, `message`, `until` | `steps`, and with `for_each` `item` and `index` |
| its `output` | the same, and `result` |
| all of these, in a handler | `error` too |
| `output` of the workflow | `steps`, all of them |

A step may read only steps that are certain to be finished when it starts (`graph.certain`). If a workflow declares its
`inputs`, its expressions may read only these.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from holdfast.core.duration_text import YEAR_NS
from holdfast.errors import BadExpression, BadInput
from holdfast.plane.workflows.core.definition import (
    FAN_OUT_MAX,
    RETRIES_MAX,
    STEPS_MAX,
    Input,
    Step,
    StepKind,
    StepRetry,
    Workflow,
)
from holdfast.plane.workflows.core.definition_codec import as_document, read_document
from holdfast.plane.workflows.core.graph import certain, handling_circles, waiting_circles
from holdfast.plane.workflows.core.problems import PROBLEMS_MAX, BadWorkflow, DefinitionProblem, Path
from holdfast.plane.workflows.expressions import (
    bare,
    check_expression,
    count_in,
    inputs_in,
    names_in,
    problems_in,
    steps_in,
)
from holdfast.plane.workflows.expressions.builtins import SIZE_MAX, Budget, Unfit, Work, kind, plain
from holdfast.plane.workflows.expressions.parser import suggestion
from holdfast.types import check_label

EXPRESSIONS_MAX: Final = 5_000

_FIX: Final = "see the table of expressions in the documentation"
_ANYWHERE: Final = frozenset({"input", "run", "steps"})
_MEANS: Final = {
    "item": "give the step a for_each",
    "index": "give the step a for_each",
    "result": "use it in the output of a step",
    "error": "use it in a step that is the on_error of another",
}


class _Text(NamedTuple):
    """A text, or a template with texts, and the names that it may read."""

    path: Path
    value: Any
    expression: bool  # the whole text is one, with or without ${ }
    names: frozenset[str]


def text_problems(workflow: Workflow) -> Iterator[DefinitionProblem]:
    """The problems of the expressions of a definition."""
    texts = [each for name, step in workflow.steps.items() for each in _texts(step, handler=name in workflow.handlers)]
    if sum(count_in(text.value) for text in texts) + count_in(workflow.output) > EXPRESSIONS_MAX:
        yield DefinitionProblem((), "there are too many expressions", f"use at most {EXPRESSIONS_MAX}")
        return
    known = certain(workflow)
    for text in texts:
        yield from _unreadable(text) or _misread(text, workflow, known.get(str(text.path[1])), known)
    whole = _Text(("output",), workflow.output, expression=False, names=_ANYWHERE)
    yield from _unreadable(whole) or _misread(whole, workflow, frozenset(workflow.steps), known)


def _texts(step: Step, *, handler: bool) -> Iterator[_Text]:
    path: Path = ("steps", step.name)
    before = _ANYWHERE | ({"error"} if handler else set())
    within = before | ({"item", "index"} if step.for_each is not None else set())
    if step.when is not None:
        yield _Text((*path, "when"), step.when, expression=True, names=before)
    yield _Text((*path, "for_each"), step.for_each, expression=isinstance(step.for_each, str), names=before)
    if step.until is not None:
        yield _Text((*path, "until"), step.until, expression=True, names=within)
    yield _Text((*path, "input"), step.input, expression=False, names=within)
    yield _Text((*path, "message"), step.message, expression=False, names=within)
    yield _Text((*path, "output"), step.output, expression=False, names=within | {"result"})


def _unreadable(text: _Text) -> list[DefinitionProblem]:
    if not text.expression:
        found = problems_in(text.value)
        return [DefinitionProblem((*text.path, *path), error.problem, _FIX, error.position) for path, error in found]
    try:
        check_expression(text.value)
    except BadExpression as error:
        return [DefinitionProblem(text.path, error.problem, _FIX, error.position)]
    return []


def _misread(
    text: _Text, workflow: Workflow, known: frozenset[str] | None, all_known: Mapping[str, frozenset[str]]
) -> list[DefinitionProblem]:
    """Names that do not exist or may not be read. `known` is None for steps in a cycle, which are reported anyway."""
    value = _as_template(text)
    problems = [
        DefinitionProblem(text.path, f"there is no {name} here", _MEANS[name])
        for name in sorted(names_in(value) - text.names)
    ]
    problems += _undeclared(text, value, workflow)
    for name in sorted(steps_in(value)):
        if name not in workflow.steps:
            near = suggestion(name, workflow.steps).removeprefix("; ")
            problems.append(
                DefinitionProblem(text.path, f"there is no step {name[:80]!r}", near or "name a step of this workflow")
            )
        elif known is not None and name not in known:
            later = text.path[1] == name or text.path[1] in all_known.get(name, ())
            fix = "read it in a later step" if later else f"add {name!r} to its after"
            problems.append(
                DefinitionProblem(text.path, f"reads step {name!r}, which may not have finished by then", fix)
            )
    return problems


def _undeclared(text: _Text, value: Any, workflow: Workflow) -> list[DefinitionProblem]:
    """Fields of `input` that the workflow does not declare. Without declarations, any field is allowed."""
    inputs = workflow.inputs
    if inputs is None:
        return []
    found = []
    for name in sorted(inputs_in(value) - set(inputs)):
        near = suggestion(name, inputs).removeprefix("; ") or f"add it to inputs: {name}: any"[:120]
        found.append(DefinitionProblem(text.path, f"there is no input {name[:80]!r}", near))
    return found


def _as_template(text: _Text) -> Any:
    if not text.expression:
        return text.value
    return "${" + bare(text.value)[0] + "}"


STEP_NAME_MAX: Final = 64  # ids of jobs contain it, and ids of nested runs contain several
PRIORITY_MAX: Final = 100
LABELS_MAX: Final = 32
DESCRIPTION_MAX: Final = 4_000
INPUTS_MAX: Final = 100
VALUES_MAX: Final = 50_000  # of a definition, each list or table counted twice: engines read it in a tenth of a second

_STEP_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._/-]{{0,{STEP_NAME_MAX - 1}}}\Z")
_K: Final = StepKind
_ALL: Final = frozenset(StepKind)
_BELONGS: Final[
    Mapping[str, tuple[str, frozenset[StepKind]]]
] = {  # by attribute: the field, and the kinds that have it
    "topic": ("topic", frozenset({_K.JOB})),
    "priority": ("priority", frozenset({_K.JOB})),
    "workflow": ("workflow", frozenset({_K.WORKFLOW})),
    "version": ("version", frozenset({_K.WORKFLOW})),
    "delay_ns": ("delay", frozenset({_K.DELAY})),
    "until": ("until", frozenset({_K.DELAY})),
    "message": ("message", frozenset({_K.APPROVAL})),
    "input": ("input", frozenset({_K.JOB, _K.WORKFLOW, _K.TRANSFORM})),
    "output": ("output", _ALL - {_K.DELAY, _K.TRANSFORM}),
    "retry": ("retry", frozenset({_K.JOB, _K.WORKFLOW, _K.APPROVAL})),
    "timeout_ns": ("timeout", frozenset({_K.JOB, _K.WORKFLOW, _K.APPROVAL})),
}
_BLANK: Final = Step("", StepKind.JOB)

_TYPES: Final[Mapping[str, str]] = {
    "text": "a text",
    "number": "a number",
    "whole": "a number",
    "flag": "a flag",
    "list": "a list",
    "table": "a table",
}


def check_workflow(workflow: Workflow) -> tuple[DefinitionProblem, ...]:
    """The problems of a definition, at most a hundred."""
    return tuple(islice(_problems(workflow), PROBLEMS_MAX))


def accept_document(document: object, source: str = "workflow") -> Workflow:
    """The valid definition from a document, or `BadWorkflow` with all problems."""
    workflow, problems = judge_document(document)
    if problems:
        raise BadWorkflow(source, problems)
    return workflow


def judge_document(document: object) -> tuple[Workflow, tuple[DefinitionProblem, ...]]:
    """The definition from a document, and its problems, at most one for each position."""
    workflow, unread = read_document(document)
    blamed = {problem.path for problem in unread}
    if () in blamed:
        return workflow, unread
    unsound = [
        problem
        for problem in check_workflow(workflow)
        if not any(problem.path[:length] in blamed for length in range(1, len(problem.path) + 1))
    ]
    return workflow, (*unread, *unsound)[:PROBLEMS_MAX]


def check_input(workflow: Workflow, value: Any) -> Any:
    """The input of a run with defaults applied, or `BadInput`."""
    try:
        given = plain(value, Work(units=SIZE_MAX))  # limited only in size
    except Unfit as unfit:
        raise BadInput("input", str(unfit).removeprefix("gives "), "give plain JSON") from None
    if workflow.inputs is None:
        return given
    table = {} if given is None else given
    if not isinstance(table, dict):
        raise BadInput("input", f"{kind(given)} stands where a table belongs", f"give {', '.join(workflow.inputs)}")
    for name in table:
        if name not in workflow.inputs:
            near = suggestion(name, workflow.inputs).removeprefix("; ")
            known = ", ".join(workflow.inputs) or "nothing"
            raise BadInput(f"input.{name}", "is not an input", near or f"{workflow.name} takes {known}")
    return {name: _taken(name, wanted, table.get(name)) for name, wanted in workflow.inputs.items()}


def _taken(name: str, wanted: Input, value: Any) -> Any:
    if value is None and not wanted.required:
        return wanted.default
    if value is None and wanted.type != "any":
        raise BadInput(f"input.{name}", "is missing", f"give {_TYPES[wanted.type]}")
    if not _fits(wanted.type, value):
        fix = "give a whole number" if wanted.type == "whole" else f"give {_TYPES[wanted.type]}"
        raise BadInput(f"input.{name}", f"is {kind(value)}, and not {wanted.type}", fix)
    return value


def _fits(type: str, value: Any) -> bool:
    if type == "any":
        return True
    return kind(value) == _TYPES[type] and (type != "whole" or isinstance(value, int))


# The definition.


def _problems(workflow: Workflow) -> Iterator[DefinitionProblem]:
    yield from _label(("name",), workflow.name)
    yield from _label(("risk",), workflow.risk)
    yield from _time(("timeout",), workflow.timeout_ns)
    if workflow.version < 0:
        yield DefinitionProblem(("version",), "is negative", "leave it out; it is given when the workflow is stored")
    if len(workflow.description) > DESCRIPTION_MAX:
        yield DefinitionProblem(("description",), "is too long", f"use at most {DESCRIPTION_MAX} characters")
    if len(workflow.labels) > LABELS_MAX:
        yield DefinitionProblem(("labels",), "are too many", f"use at most {LABELS_MAX}")
    for name, wanted in (workflow.inputs or {}).items():
        yield from _input(("inputs", name), name, wanted)
    if len(workflow.inputs or {}) > INPUTS_MAX:
        yield DefinitionProblem(("inputs",), "are too many", f"use at most {INPUTS_MAX}")
    if not 0 < len(workflow.steps) <= STEPS_MAX:
        yield DefinitionProblem(("steps",), f"there are {len(workflow.steps)}", f"use 1 to {STEPS_MAX} steps")
    if len(workflow.steps) > STEPS_MAX:
        return
    for name, step in workflow.steps.items():
        yield from _step(workflow, name, step)
    yield from _circles(workflow)
    unfit = list(_unfit(workflow))
    yield from unfit or text_problems(workflow)


def _unfit(workflow: Workflow) -> Iterator[DefinitionProblem]:
    """Templates that are not JSON, and a definition that is too large."""
    parts: list[tuple[Path, Any]] = [(("output",), workflow.output)]
    for name, step in workflow.steps.items():
        parts += [
            (("steps", name, field), getattr(step, field)) for field in ("input", "output", "message", "for_each")
        ]
    for path, value in parts:
        try:
            plain(value, Work(units=SIZE_MAX))
        except Unfit as unfit:
            yield DefinitionProblem(path, str(unfit).removeprefix("gives "), "write plain JSON, and less of it")
            return
    cost = Budget()
    try:
        plain(as_document(workflow), Work(units=SIZE_MAX, budget=cost))
    except Unfit as unfit:
        yield DefinitionProblem((), f"the definition {unfit}", "split it into several workflows")
    else:
        if cost.spent > VALUES_MAX:
            yield DefinitionProblem(
                (), "the definition has too many values", "split it, or give long lists as an input"
            )


def _input(path: Path, name: str, wanted: Input) -> Iterator[DefinitionProblem]:
    yield from _label(path, name)
    if wanted.type != "any" and wanted.type not in _TYPES:
        known = ", ".join(["any", *_TYPES])
        yield DefinitionProblem(
            (*path, "type"), f"{wanted.type[:60]!r} is no type{suggestion(wanted.type, _TYPES)}", f"use {known}"
        )
    elif wanted.default is not None and not _fits(wanted.type, wanted.default):
        yield DefinitionProblem(
            (*path, "default"), f"is {kind(wanted.default)}, and not {wanted.type}", "change one of the two"
        )
    if wanted.required and wanted.default is not None:
        yield DefinitionProblem((*path, "required"), "it has a default and is required", "remove one of the two")


def _circles(workflow: Workflow) -> Iterator[DefinitionProblem]:
    knots = waiting_circles(workflow)
    for circle in knots:
        yield DefinitionProblem(("steps", circle[0], "after"), f"waits for itself: {_way(circle)}", "break the circle")
    tied = {name for circle in knots for name in circle}
    for circle in handling_circles(workflow):
        if not tied & set(circle):
            fix = "a handler waits for the steps that it handles, so it must not wait for their dependents"
            yield DefinitionProblem(("steps", circle[0]), f"can never start: {_way(circle)}", fix)


def _way(circle: list[str]) -> str:
    return " → ".join([*circle[:10], *(["…"] if len(circle) > 10 else []), circle[0]])


# One step.


def _step(workflow: Workflow, name: str, step: Step) -> Iterator[DefinitionProblem]:
    path: Path = ("steps", name)
    if _STEP_NAME.match(name) is None or step.name != name:
        fix = f"use letters, digits, . _ - and /, beginning with a letter or digit, at most {STEP_NAME_MAX}"
        yield DefinitionProblem(path, f"{name[:80]!r} is not usable as the name of a step", fix)
    yield from _kind(path, step)
    yield from _order(workflow, path, step)
    yield from _fan_out(path, step)
    yield from _retry((*path, "retry"), step.retry)
    yield from _time((*path, "timeout"), step.timeout_ns)
    yield from _time((*path, "delay"), step.delay_ns)
    if step.risk is not None:
        yield from _label((*path, "risk"), step.risk)
    if step.topic is not None:
        yield from _label((*path, "topic"), step.topic)
    if step.workflow is not None:
        yield from _label((*path, "workflow"), step.workflow)
    if step.version is not None and step.version < 1:
        yield DefinitionProblem(
            (*path, "version"), f"there is no version {step.version}", "count from 1, or leave it out"
        )
    if abs(step.priority) > PRIORITY_MAX:
        fix = f"give between -{PRIORITY_MAX} and {PRIORITY_MAX}"
        yield DefinitionProblem((*path, "priority"), f"{step.priority} is out of range", fix)


def _kind(path: Path, step: Step) -> Iterator[DefinitionProblem]:
    for attribute, (field, kinds) in _BELONGS.items():
        if step.kind not in kinds and getattr(step, attribute) != getattr(_BLANK, attribute):
            fix = f"remove it; {', '.join(sorted(kinds))} has it" if len(kinds) == 1 else "remove it"
            yield DefinitionProblem((*path, field), f"a step of kind {step.kind} has no {field}", fix)
    if step.kind is _K.JOB and step.topic is None:
        yield DefinitionProblem((*path, "topic"), "is missing", "name the topic whose workers run the job")
    if step.kind is _K.WORKFLOW and step.workflow is None:
        yield DefinitionProblem((*path, "workflow"), "is missing", "name the workflow to run")
    if step.kind is _K.TRANSFORM and step.input is None:
        yield DefinitionProblem((*path, "input"), "is missing", "say which value it makes")
    if step.kind is _K.DELAY and (step.delay_ns is None) is (step.until is None):
        problem = "is missing" if step.until is None else "both delay and until are given"
        yield DefinitionProblem((*path, "delay"), problem, "say how long to wait (delay), or until when (until)")


def _order(workflow: Workflow, path: Path, step: Step) -> Iterator[DefinitionProblem]:
    seen: set[str] = set()
    for place, name in enumerate(step.after):
        here = (*path, "after", place)
        if name == step.name:
            yield DefinitionProblem(here, "it waits for itself", "remove it")
        elif name not in workflow.steps:
            yield _unknown(here, name, workflow)
        elif name in seen:
            yield DefinitionProblem(here, f"{name!r} is named twice", "name it once")
        seen.add(name)
    if step.join is not None and not 1 <= step.join <= len(set(step.after)):
        most = len(set(step.after))
        fix = f"give 1 to {most}" if most else "name the steps to wait for in after, or leave it out"
        yield DefinitionProblem((*path, "join"), f"{step.join} of {most} steps cannot be waited for", fix)
    if step.cancel_rest and (step.join is None or step.join >= len(set(step.after))):
        fix = "give a join that is smaller than the number of steps in after, or leave it out"
        yield DefinitionProblem((*path, "cancel_rest"), "there is nothing to cancel", fix)
    if not step.recover and step.on_error is None:
        yield DefinitionProblem(
            (*path, "recover"), "there is no on_error", "name the step that cleans up, or leave it out"
        )
    if step.on_error == step.name:
        yield DefinitionProblem((*path, "on_error"), "it handles itself", "name another step")
    elif step.on_error is not None and step.on_error not in workflow.steps:
        yield _unknown((*path, "on_error"), step.on_error, workflow)


def _unknown(path: Path, name: str, workflow: Workflow) -> DefinitionProblem:
    near = suggestion(name, workflow.steps).removeprefix("; ")
    return DefinitionProblem(path, f"there is no step {name[:80]!r}", near or "name a step of this workflow")


def _fan_out(path: Path, step: Step) -> Iterator[DefinitionProblem]:
    here = (*path, "for_each")
    if step.for_each is not None and not isinstance(step.for_each, str | list | tuple):
        yield DefinitionProblem(
            here, f"{kind(step.for_each)} is no list", 'give a list, or an expression: "${ input.orders }"'
        )
    if isinstance(step.for_each, list | tuple) and len(step.for_each) > FAN_OUT_MAX:
        yield DefinitionProblem(here, f"has {len(step.for_each)} items", f"give at most {FAN_OUT_MAX}")
    if step.max_parallel is None:
        return
    if step.for_each is None:
        yield DefinitionProblem(
            (*path, "max_parallel"), "there is nothing to do in parallel", "give for_each, or leave it out"
        )
    if not 1 <= step.max_parallel <= FAN_OUT_MAX:
        yield DefinitionProblem(
            (*path, "max_parallel"), f"{step.max_parallel} is out of range", f"give 1 to {FAN_OUT_MAX}"
        )


def _retry(path: Path, retry: StepRetry) -> Iterator[DefinitionProblem]:
    if not 0 <= retry.retries <= RETRIES_MAX:
        yield DefinitionProblem((*path, "retries"), f"{retry.retries} is out of range", f"give 0 to {RETRIES_MAX}")
    yield from _time((*path, "initial"), retry.initial_ns)
    yield from _time((*path, "cap"), retry.cap_ns)
    if retry.cap_ns < retry.initial_ns:
        yield DefinitionProblem((*path, "cap"), "is less than initial", "give at least as much")
    if not (math.isfinite(retry.multiplier) and 1 <= retry.multiplier <= 100):
        yield DefinitionProblem((*path, "multiplier"), f"{retry.multiplier:g} is out of range", "give 1 to 100")
    if not (math.isfinite(retry.jitter) and 0 <= retry.jitter <= 1):
        yield DefinitionProblem((*path, "jitter"), f"{retry.jitter:g} is out of range", "give 0 to 1")


def _time(path: Path, value_ns: int | None) -> Iterator[DefinitionProblem]:
    if value_ns is not None and not 0 < value_ns <= YEAR_NS:
        yield DefinitionProblem(path, "is out of range", "give more than 0 seconds, and at most 366 days")


def _label(path: Path, value: str) -> Iterator[DefinitionProblem]:
    try:
        check_label("", value)
    except BadInput as bad:
        yield DefinitionProblem(path, bad.problem, bad.fix)
