"""The document of a run: small JSON that can be decoded exactly. Pure.

Promises: `from_document(as_document(run), run.workflow)` equals the run, also after the document went through JSON, if
its values are JSON. Default values are omitted, and the outputs of a successful fan-out's children are written once. A
document is bounded because a run is: `STEPS_MAX`, `FAN_OUT_MAX` and `RUN_BYTES_MAX`. A document that no run can have
made raises `BadInput` and is never decoded partially.

`RunText` is `as_document` as JSON text, for a run that is written repeatedly: it encodes only the values that have
changed since its last call. Without it, each result of a fan-out would encode all of its children, which is quadratic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, Final

from holdfast.errors import BadInput
from holdfast.plane.workflows.core import definition_codec
from holdfast.plane.workflows.core.definition import Workflow
from holdfast.plane.workflows.core.run import Parent, Run, RunStatus, StepState, StepStatus

_NO_STEPS: Final[Mapping[str, StepState]] = MappingProxyType({})
FORM: Final = 1  # increases when older documents cannot be decoded as they are

# Fields that are JSON as they are; the others are written by hand.
_PLAIN_OF_STEP: Final = {each.name: each.default for each in fields(StepState)}
del _PLAIN_OF_STEP["status"], _PLAIN_OF_STEP["items"], _PLAIN_OF_STEP["children"]
_PLAIN_OF_RUN: Final = {each.name: each.default for each in fields(Run)}
del _PLAIN_OF_RUN["workflow"], _PLAIN_OF_RUN["status"], _PLAIN_OF_RUN["steps"], _PLAIN_OF_RUN["parent"]
del _PLAIN_OF_RUN["requesters"]


def as_document(run: Run, *, definition: bool = False) -> dict[str, Any]:
    """A run as JSON; with its definition only if that is not stored elsewhere."""
    document = {"form": FORM, "status": run.status.value, **_plain(run, _PLAIN_OF_RUN)}
    if run.parent is not None:
        document["parent"] = [run.parent.run, run.parent.step, run.parent.attempt]
    if run.requesters:
        document["requesters"] = list(run.requesters)
    document["steps"] = {name: _step(state) for name, state in run.steps.items()}
    if definition:
        document["workflow"] = definition_codec.as_document(run.workflow)
    return document


def from_document(document: Mapping[str, Any], workflow: Workflow | None = None) -> Run:
    """The run from its document. `workflow` is its definition; None: it is in the document."""
    try:
        if document["form"] != FORM:
            raise _Unreadable(f"has form {document['form']!r}, not {FORM}")
        if workflow is None:
            workflow = definition_codec.from_document(document["workflow"])
        steps, parent = document["steps"], document.get("parent")
        if set(steps) != set(workflow.steps):
            raise _Unreadable("has other steps than its workflow")
        return Run(
            workflow=workflow,
            status=RunStatus(document["status"]),
            # In the order of the definition: a store may reorder the keys of a table.
            steps=MappingProxyType({name: _read_step(steps[name]) for name in workflow.steps}),
            parent=None if parent is None else Parent(*parent),
            requesters=tuple(document.get("requesters", ())),
            **{name: document[name] for name in _PLAIN_OF_RUN if name in document},
        )
    except _Unreadable as error:
        problem = str(error)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        problem = f"is no run ({type(error).__name__}: {error})"
    raise BadInput("document", problem, "give a document of `as_document`, with the definition of the run")


class RunText:
    """Encodes the successive states of one run. Values never change, so a known object needs no encoding."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, str]] = {}  # by identity; the reference keeps the id unique
        self._used: dict[int, tuple[object, str]] = {}

    def of(self, run: Run) -> str:
        """The document of a run as text."""
        self._used = {}
        head = as_document(replace(run, input=None, steps=_NO_STEPS))
        del head["steps"]
        steps = ",".join(f"{_text(name)}:{self._step(state)}" for name, state in run.steps.items())
        text = f'{_text(head)[:-1]},"input":{self._value(run.input)},"steps":{{{steps}}}}}'
        self._known = self._used  # drops everything else
        return text

    def _step(self, state: StepState) -> str:
        found = self._found(state)
        if found is not None:
            return found
        if state.items is None or _is_list_of_children(state):
            return self._kept(state, _text(_step(state)))
        own = _text(_step(replace(state, items=None, children=())))
        children = ",".join(map(self._step, state.children))
        return f'{own[:-1]},"items":{self._value(state.items)},"children":[{children}]}}'

    def _value(self, value: Any) -> str:
        found = self._found(value)
        return self._kept(value, _text(value)) if found is None else found

    def _found(self, value: object) -> str | None:
        known = self._known.get(id(value))
        if known is None:
            return None
        self._used[id(value)] = known
        return known[1]

    def _kept(self, value: object, text: str) -> str:
        self._used[id(value)] = (value, text)
        return text


def _text(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)


class _Unreadable(Exception):
    """A document is not a run."""


def _plain(value: Run | StepState, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The values that differ from the defaults."""
    found = ((name, getattr(value, name), default) for name, default in defaults.items())
    return {name: now for name, now, default in found if now is not default and now != default}


def _step(state: StepState, *, output: bool = True) -> dict[str, Any]:
    document = _plain(state, _PLAIN_OF_STEP)
    document["status"] = state.status.value
    if not output:
        document.pop("output", None)
    if state.items is not None:
        document["items"] = list(state.items)
        own = not _is_list_of_children(state)
        document["children"] = [_step(child, output=own) for child in state.children]
    return document


def _read_step(document: Mapping[str, Any]) -> StepState:
    plain = {name: document[name] for name in _PLAIN_OF_STEP if name in document}
    status = StepStatus(document["status"])
    items = document.get("items")
    if items is None:
        return StepState(status, **plain)
    state = StepState(status, items=tuple(items), children=tuple(map(_read_step, document["children"])), **plain)
    if not _is_list_of_children(state):
        return state
    pairs = zip(state.children, state.output, strict=True)
    return replace(state, children=tuple(replace(child, output=output) for child, output in pairs))


def _is_list_of_children(state: StepState) -> bool:
    """Whether the output of a fan-out is the list of its children's outputs, and need not be written twice."""
    return state.status is StepStatus.SUCCEEDED
