"""The document of a definition, which the API, YAML files and storage share: JSON, with durations in seconds. Pure.

Promises: `from_document` reverses `as_document` exactly. An unknown field or an invalid value is a problem and never
ignored; all problems are found together. `validation` checks whether the definition makes sense.

Reading accepts more than writing produces. A duration is a number of seconds or a text such as "90s", "1h30m" or
"250ms". `after` may be one name, `retry` a number of retries, an input its type; and `kind` may be omitted where
another field implies it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any, Final

from holdfast.core.duration_text import parse_duration_ns
from holdfast.errors import BadInput
from holdfast.plane.workflows.core.definition import Input, Step, StepKind, StepRetry, Workflow
from holdfast.plane.workflows.core.problems import PROBLEMS_MAX, BadWorkflow, DefinitionProblem, Path
from holdfast.plane.workflows.expressions.builtins import Unfit, Work, kind, plain
from holdfast.plane.workflows.expressions.parser import suggestion
from holdfast.types import NS


def duration(value: Any, field: str = "") -> int:
    """A duration in a definition, in nanoseconds, or `BadInput`."""
    return parse_duration_ns(field, value)


def written_duration(value_ns: int) -> int | float | str:
    """The shortest exact form: a number of seconds, or a text in nanoseconds."""
    seconds, rest = divmod(value_ns, NS)
    if not rest:
        return seconds
    return value_ns / NS if round(value_ns / NS * NS) == value_ns else f"{value_ns}ns"


_HERE: Final = ""  # the caller knows the position of the field


class _Reading:
    """The problems found so far."""

    def __init__(self) -> None:
        self.problems: list[DefinitionProblem] = []

    def add(self, path: Path, problem: str, fix: str) -> None:
        """Record a problem, unless there are enough."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(DefinitionProblem(path, problem, fix))

    def table(self, path: Path, value: object, known: Mapping[str, _Field]) -> dict[str, Any]:
        """The valid values of a table, by attribute. Invalid values are omitted and recorded as problems."""
        if not isinstance(value, Mapping):
            self.add(path, f"{kind(value)} stands where a table belongs", f"write {', '.join(list(known)[:3])}, …")
            return {}
        found = {}
        for key, each in value.items():
            if len(self.problems) >= PROBLEMS_MAX:
                break
            if key not in known:
                near = suggestion(str(key), known).removeprefix("; ") or f"use {', '.join(known)}"
                self.add((*path, str(key)), f"there is no field {str(key)[:60]!r}", near)
            elif each is not None:
                field, here = known[key], (*path, key)
                try:
                    found[field.attribute] = field.read(self, here, each) if field.nested else field.read(each)
                except BadInput as bad:
                    self.add((*path, key), bad.problem, bad.fix)
        return found


class _Field:
    """One field: its attribute, and how it is read and written."""

    __slots__ = ("attribute", "nested", "read", "write")

    def __init__(
        self,
        attribute: str,
        read: Callable[..., Any],
        write: Callable[[Any], Any] = lambda value: value,
        *,
        nested: bool = False,  # it has fields of its own, and gets its path
    ) -> None:
        self.attribute, self.read, self.write, self.nested = attribute, read, write, nested


# Values.


def _json(value: Any) -> Any:
    try:
        return plain(value, Work())
    except Unfit as unfit:
        raise BadInput(_HERE, str(unfit).removeprefix("gives "), "write plain JSON") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise BadInput(_HERE, f"{kind(value)} stands where a text belongs", 'write it in quotes: "…"')
    return str(value)


def _condition(value: Any) -> str:
    """A condition, which a file may give as a flag."""
    return ("true" if value else "false") if isinstance(value, bool) else _text(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(_HERE, f"{_shown(value)} is not a whole number", "write a number such as 3")
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e15 or value != value:
        raise BadInput(_HERE, f"{_shown(value)} is not a number", "write a number such as 2.0")
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadInput(_HERE, f"{_shown(value)} is neither true nor false", "write true or false, without quotes")
    return value


def _names(value: Any) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise BadInput(_HERE, f"{_shown(value)} is not a list of names", "write [a, b]")
    return tuple(given)


def _kind(value: Any) -> StepKind:
    if value not in list(StepKind):
        near = suggestion(value, list(StepKind)) if isinstance(value, str) else ""
        raise BadInput(_HERE, f"{_shown(value)} is no kind of step{near}", f"use {', '.join(StepKind)}")
    return StepKind(value)


def _texts(value: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for pair in value.items() for each in pair):
        raise BadInput(_HERE, "labels are a table of texts", 'write {team: "payments"}')
    return MappingProxyType(dict(value))


def _retry(reading: _Reading, path: Path, value: Any) -> StepRetry:
    if isinstance(value, int) and not isinstance(value, bool):
        return StepRetry(value)
    return StepRetry(**reading.table(path, value, _RETRY))


def _inputs(reading: _Reading, path: Path, value: Any) -> Mapping[str, Input]:
    if not isinstance(value, Mapping):
        raise BadInput(_HERE, f"{kind(value)} stands where a table belongs", "write {amount: number, note: text}")
    return MappingProxyType({str(name): _input(reading, (*path, str(name)), each) for name, each in value.items()})


def _input(reading: _Reading, path: Path, value: Any) -> Input:
    if value is None:
        return Input()
    if isinstance(value, str):
        return Input(value)
    found = reading.table(path, value, _INPUT)
    found.setdefault("required", found.get("default") is None)
    return Input(**found)


def _steps(reading: _Reading, path: Path, value: Any) -> Mapping[str, Step]:
    if not isinstance(value, Mapping):
        raise BadInput(_HERE, f"{kind(value)} stands where a table belongs", "write {fetch: {topic: crm.fetch}, …}")
    return MappingProxyType({str(name): _step(reading, (*path, str(name)), each) for name, each in value.items()})


def _step(reading: _Reading, path: Path, value: Any) -> Step:
    found = reading.table(path, value, _STEP)
    if "kind" not in found:
        found["kind"] = next((each for field, each in _GIVEN_BY.items() if field in found), StepKind.TRANSFORM)
        if isinstance(value, Mapping) and "kind" not in value and not any(field in value for field in _GIVEN_BY):
            reading.add(path, "does not say what kind of step it is", f"write kind: {', '.join(StepKind)}")
    return Step(name=str(path[-1]), **found)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _lists(value: Any) -> Any:
    """A template as JSON: tuples and frozen tables become lists and tables."""
    if isinstance(value, Mapping):
        return {key: _lists(each) for key, each in value.items()}
    return [_lists(each) for each in value] if isinstance(value, list | tuple) else value


# The fields, in the order in which they are written.

_GIVEN_BY: Final = {
    "topic": StepKind.JOB,
    "workflow": StepKind.WORKFLOW,
    "delay": StepKind.DELAY,
    "delay_ns": StepKind.DELAY,
    "until": StepKind.DELAY,
    "message": StepKind.APPROVAL,
}
_RETRY: Final = {
    "retries": _Field("retries", _whole),
    "initial": _Field("initial_ns", duration, written_duration),
    "multiplier": _Field("multiplier", _number),
    "cap": _Field("cap_ns", duration, written_duration),
    "jitter": _Field("jitter", _number),
}
_INPUT: Final = {
    "type": _Field("type", _text),
    "required": _Field("required", _flag),
    "default": _Field("default", _json, _lists),
}
_STEP: Final = {
    "kind": _Field("kind", _kind, str),
    "after": _Field("after", _names, list),
    "join": _Field("join", _whole),
    "cancel_rest": _Field("cancel_rest", _flag),
    "when": _Field("when", _condition),
    "for_each": _Field("for_each", _json, _lists),
    "max_parallel": _Field("max_parallel", _whole),
    "topic": _Field("topic", _text),
    "priority": _Field("priority", _whole),
    "workflow": _Field("workflow", _text),
    "version": _Field("version", _whole),
    "delay": _Field("delay_ns", duration, written_duration),
    "until": _Field("until", _text),
    "message": _Field("message", _json, _lists),
    "input": _Field("input", _json, _lists),
    "output": _Field("output", _json, _lists),
    "timeout": _Field("timeout_ns", duration, written_duration),
    "retry": _Field("retry", _retry, lambda value: _written(value, _RETRY), nested=True),
    "on_error": _Field("on_error", _text),
    "recover": _Field("recover", _flag),
    "risk": _Field("risk", _text),
}
_WORKFLOW: Final = {
    "name": _Field("name", _text),
    "version": _Field("version", _whole),
    "description": _Field("description", _text),
    "risk": _Field("risk", _text),
    "labels": _Field("labels", _texts, dict),
    "timeout": _Field("timeout_ns", duration, written_duration),
    "inputs": _Field(
        "inputs", _inputs, lambda value: {name: _input_written(each) for name, each in value.items()}, nested=True
    ),
    "steps": _Field(
        "steps", _steps, lambda value: {name: _written(each, _STEP) for name, each in value.items()}, nested=True
    ),
    "output": _Field("output", _json, _lists),
}


def as_document(workflow: Workflow) -> dict[str, Any]:
    """The document of a definition: JSON."""
    return _written(workflow, _WORKFLOW)


def from_document(document: object, source: str = "workflow") -> Workflow:
    """The definition from a document, or `BadWorkflow` with all invalid fields. It is not validated."""
    workflow, problems = read_document(document)
    if problems:
        raise BadWorkflow(source, problems)
    return workflow


def read_document(document: object) -> tuple[Workflow, tuple[DefinitionProblem, ...]]:
    """The definition from a document, with defaults for invalid fields, and the problems."""
    reading = _Reading()
    found = reading.table((), document, _WORKFLOW)
    if isinstance(document, Mapping):
        for field, fix in (("name", "write name: refund"), ("steps", "write steps: {fetch: {topic: crm.fetch}}")):
            if document.get(field) is None:
                reading.add((field,), "is missing", fix)
    return Workflow(**({"name": "", "steps": MappingProxyType({})} | found)), tuple(reading.problems)


def _input_written(value: Input) -> dict[str, Any]:
    return {"type": value.type, "required": value.required} | _written(value, {"default": _INPUT["default"]})


def _written(value: Any, known: Mapping[str, _Field]) -> dict[str, Any]:
    """The values that differ from the defaults."""
    defaults = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory() for each in fields(value)
    }
    now = {key: (field, getattr(value, field.attribute)) for key, field in known.items()}
    return {key: field.write(it) for key, (field, it) in now.items() if it != defaults[field.attribute]}
