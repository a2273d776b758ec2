"""What is wrong with the texts of a definition: those that cannot be read, and those that read what is not there. Pure.

| Text | reads, besides `input` and `run` |
|---|---|
| `when`, `for_each` of a step | `steps` |
| its `input`, `message`, `until` | `steps`, and with `for_each` `item` and `index` |
| its `output` | the same, and `result` |
| all of these, in a handler | `error` too |
| `output` of the workflow | `steps`, all of them |

A step may read only steps that are certain to be over when it begins (`workflow_graph.certain`). Where a workflow
declares its `inputs`, a text may name only these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from holdfast.core.expression_syntax import suggestion
from holdfast.core.expressions import bare, check_expression, count_in, inputs_in, names_in, problems_in, steps_in
from holdfast.core.workflow import Step, Workflow
from holdfast.core.workflow_graph import certain
from holdfast.core.workflow_problems import Path, Problem
from holdfast.errors import BadExpression

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
    """A text, or a template with texts, and what it may read."""

    path: Path
    value: Any
    expression: bool  # it is one as a whole, with or without ${ }
    names: frozenset[str]


def text_problems(workflow: Workflow) -> Iterator[Problem]:
    """All that is wrong with the texts of a definition."""
    texts = [each for name, step in workflow.steps.items() for each in _texts(step, handler=name in workflow.handlers)]
    if sum(count_in(text.value) for text in texts) + count_in(workflow.output) > EXPRESSIONS_MAX:
        yield Problem((), "there are too many expressions", f"use at most {EXPRESSIONS_MAX}")
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


def _unreadable(text: _Text) -> list[Problem]:
    if not text.expression:
        found = problems_in(text.value)
        return [Problem((*text.path, *path), error.problem, _FIX, error.position) for path, error in found]
    try:
        check_expression(text.value)
    except BadExpression as error:
        return [Problem(text.path, error.problem, _FIX, error.position)]
    return []


def _misread(
    text: _Text, workflow: Workflow, known: frozenset[str] | None, all_known: Mapping[str, frozenset[str]]
) -> list[Problem]:
    """What can be read and is not there. `known` is None for steps in a circle, which have trouble enough."""
    value = _as_template(text)
    problems = [
        Problem(text.path, f"there is no {name} here", _MEANS[name]) for name in sorted(names_in(value) - text.names)
    ]
    problems += _undeclared(text, value, workflow)
    for name in sorted(steps_in(value)):
        if name not in workflow.steps:
            near = suggestion(name, workflow.steps).removeprefix("; ")
            problems.append(
                Problem(text.path, f"there is no step {name[:80]!r}", near or "name a step of this workflow")
            )
        elif known is not None and name not in known:
            later = text.path[1] == name or text.path[1] in all_known.get(name, ())
            fix = "read it in a later step" if later else f"add {name!r} to its after"
            problems.append(Problem(text.path, f"reads step {name!r}, which may not be over by then", fix))
    return problems


def _undeclared(text: _Text, value: Any, workflow: Workflow) -> list[Problem]:
    """Fields of `input` that the workflow does not declare. One that declares none takes anything."""
    inputs = workflow.inputs
    if inputs is None:
        return []
    found = []
    for name in sorted(inputs_in(value) - set(inputs)):
        near = suggestion(name, inputs).removeprefix("; ") or f"add it to inputs: {name}: any"[:120]
        found.append(Problem(text.path, f"there is no input {name[:80]!r}", near))
    return found


def _as_template(text: _Text) -> Any:
    if not text.expression:
        return text.value
    return "${" + bare(text.value)[0] + "}"
