"""How the payload of a job becomes the arguments of its function, and arguments become a payload.

- The payload is an object, and its members are the arguments by name.
- A function with one parameter also accepts any other payload, as the value of that parameter.
- A function without parameters takes no payload.
- A function whose first parameter is called `payload`, or is positional-only, gets the whole payload as that argument.

Arguments are checked against the annotations when a job is submitted with its function, and again before it runs. Then
dataclasses, TypedDicts, pydantic models and other types are made from their JSON. A parameter called `payload` is
passed unchanged unless its annotation contains a dataclass, TypedDict or model; so is a result.

Promises: a payload that does not fit is refused with the name of the parameter, before anything is stored, and by a
worker without calling the function. No text made here contains values of the payload.

Clock: none. Needs pydantic only for annotations that it checks.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cached_property, partial
from typing import Any, Final, get_args, get_type_hints, is_typeddict

from holdfast.errors import BadInput, Misconfigured
from holdfast.plane.model.records import encoded

CONTEXT: Final = "ctx"  # the parameter with this name gets the context
PAYLOAD: Final = "payload"  # a first parameter with this name gets the whole payload
RETURN: Final = "return"

_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_GATHERED: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Parameters:
    """The parameters of one job function, besides the context."""

    function: Callable[..., Any]
    named: tuple[str, ...]  # the members of the payload; empty: one parameter gets all of it
    required: frozenset[str]
    whole: str | None  # the parameter for the whole payload; None: positional-only, or there is none
    wants_context: bool
    empty: bool = False  # it takes no payload

    def call_arguments(self, payload: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for a payload, or `BadInput` that names the parameter."""
        if self.empty:
            self._check_empty(payload)
            return (), {}
        if self.named:
            return (), self._parsed(_members(payload))
        value = payload[self.whole] if self._is_member(payload) else payload
        value = self._adapted(self.whole, value) if self.whole in self._types else value
        return ((value,), {}) if self.whole is None else ((), {self.whole: value})

    def payload(self, positional: Sequence[Any], members: Mapping[str, Any]) -> Any:
        """The payload as JSON for the arguments of a submission, or `BadInput`.

        One positional argument is the payload itself. Members are arguments by name.
        """
        if positional and members:
            raise BadInput("payload", "was given besides arguments by name", "give one of the two")
        if self.empty:
            self._check_empty(positional[0] if positional else dict(members))
            return None
        if not self.named:
            if members and (list(members) != [self.whole] or self.whole is None):
                known = "one positional argument" if self.whole is None else f"{self.whole}= alone"
                raise BadInput(next(iter(members)), f"is not a parameter of {self.name}", f"give {known}")
            if positional and self._is_member(positional[0]):
                members = positional[0]
            value = next(iter(members.values())) if members else positional[0] if positional else None
            value = self._dumped(self.whole, value) if self.whole in self._types else value
            return {self.whole: value} if members and self.whole != PAYLOAD else value
        given = _members(positional[0]) if positional else members
        checked = self._parsed(given)
        return {name: self._dumped(name, value) if name in self._types else value for name, value in checked.items()}

    def _check_empty(self, payload: Any) -> None:
        if payload is not None and payload != {}:
            raise BadInput(PAYLOAD, f"is not empty, and {self.name} takes none", "leave it out")

    def _is_member(self, payload: Any) -> bool:
        """Whether a payload is an object with the only parameter as its only member."""
        return isinstance(payload, Mapping) and self.whole != PAYLOAD and list(payload) == [self.whole]

    def result_json(self, value: Any) -> Any:
        """A return value as JSON, if its annotation contains a dataclass, TypedDict or model; else the value."""
        return self._dumped(RETURN, value) if RETURN in self._types else value

    def result(self, value: Any) -> Any:
        """A result from its JSON, as its annotation says."""
        return self._adapted(RETURN, value) if RETURN in self._types else value

    @property
    def name(self) -> str:
        """The name of the function."""
        return getattr(self.function, "__qualname__", repr(self.function))

    # Types.

    @cached_property
    def _types(self) -> Mapping[str | None, Any]:
        """A pydantic adapter for each parameter (and the return value) that is checked."""
        names = [*([] if self.whole is None else [self.whole]), *self.named, RETURN]
        found = {name: self._hint(name) for name in names}
        checked = {
            name: hint
            for name, hint in found.items()
            if (_has_structure(hint) if name in (PAYLOAD, RETURN) else hint is not Any)
        }
        if not checked:
            return {}
        try:
            from pydantic import TypeAdapter
            from pydantic.errors import PydanticUserError
        except ModuleNotFoundError as error:
            raise Misconfigured(f'{self.name} needs pydantic: pip install "holdfast[plane]"') from error
        adapters: dict[str | None, Any] = {}
        for name, hint in checked.items():
            try:
                adapters[name] = TypeAdapter(hint)
            except PydanticUserError as error:  # such as a TypedDict of `typing` on Python 3.11
                fix = "annotate it with a type that pydantic knows"
                raise BadInput(name or PAYLOAD, f"{self.name}: {error.message}"[:300], fix) from error
        return adapters

    def _hint(self, name: str) -> Any:
        body = self.function if inspect.isroutine(self.function) else type(self.function).__call__
        body = inspect.unwrap(body)
        annotations = getattr(body, "__annotations__", {})
        if name not in annotations:
            return Any
        holder = type("_Holder", (), {"__annotations__": {name: annotations[name]}})
        try:
            return get_type_hints(holder, globalns=getattr(body, "__globals__", {}), include_extras=True)[name]
        except Exception as error:
            if name == RETURN or not self.named:
                return Any  # it is passed as it is
            fix = "define the type at the top level of the module"
            raise BadInput(name, f"{self.name} has an annotation that cannot be resolved", fix) from error

    def _parsed(self, members: Mapping[str, Any]) -> dict[str, Any]:
        if unknown := [each for each in members if each not in self.named]:
            raise BadInput(str(unknown[0])[:80], f"is not a parameter of {self.name}", f"use {', '.join(self.named)}")
        if missing := [each for each in self.named if each in self.required and each not in members]:
            raise BadInput(missing[0], f"is missing; {self.name} needs it", "give it by name")
        return {name: self._adapted(name, value) if name in self._types else value for name, value in members.items()}

    def _adapted(self, name: str | None, value: Any) -> Any:
        from pydantic import ValidationError

        try:
            return self._types[name].validate_python(value)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            at = ".".join(str(each)[:80] for each in (name or PAYLOAD, *first["loc"]))
            raise BadInput(at, first["msg"][:200], f"give what {self.name} declares") from None

    def _dumped(self, name: str | None, value: Any) -> Any:
        return self._types[name].dump_python(self._adapted(name, value), mode="json")


def parameters_of(function: object) -> Parameters:
    """The parameters of a function, or `BadInput` if it cannot run as a job."""
    if not callable(function) or inspect.isclass(function):
        raise BadInput("function", f"{function!r} is not a function", "decorate a def or an async def")
    name = getattr(function, "__qualname__", repr(function))
    try:
        parameters = dict(inspect.signature(function).parameters)
    except ValueError:
        raise BadInput("function", f"{name} has no signature", "wrap it in a def") from None
    context = parameters.pop(CONTEXT, None)
    if context is not None and context.kind is context.POSITIONAL_ONLY:
        raise BadInput("function", f"{name} takes a ctx that cannot be given by name", "remove the /")
    wants_context = context is not None and context.kind not in _GATHERED
    bound = function.keywords if isinstance(function, partial) else ()
    plain = [each for each in parameters.values() if each.kind not in _GATHERED and each.name not in bound]
    if not plain and not parameters:
        return Parameters(function, (), frozenset(), None, wants_context, empty=True)
    if not plain:
        raise BadInput("function", f"{name} takes no payload", "write def f(payload) or def f(ctx, payload)")
    first, *others = plain
    by_position = first.kind is first.POSITIONAL_ONLY
    if not others or by_position or first.name == PAYLOAD:
        needed = [each.name for each in others if each.default is each.empty]
        if needed:
            fix = f"give them defaults, or do not call the first parameter {PAYLOAD}"
            raise BadInput("function", f"{name} needs {', '.join(needed)} besides the payload", fix)
        return Parameters(function, (), frozenset(), None if by_position else first.name, wants_context)
    if unnamed := [each.name for each in plain if each.kind not in _NAMED]:
        raise BadInput("function", f"{name} takes {unnamed[0]} by position only", "remove the /")
    required = frozenset(each.name for each in plain if each.default is each.empty)
    return Parameters(function, tuple(each.name for each in plain), required, None, wants_context)


def _members(payload: Any) -> Mapping[str, Any]:
    if not isinstance(payload, Mapping):
        raise BadInput(PAYLOAD, "is not an object", "give an object with a member for each parameter")
    return payload


def _has_structure(hint: Any) -> bool:
    if isinstance(hint, type) and (is_dataclass(hint) or is_typeddict(hint) or hasattr(hint, "model_validate")):
        return True
    return any(_has_structure(each) for each in get_args(hint))


def plain_json(field: str, value: Any) -> Any:
    """A copy of a value as its readers will see it, or `BadInput`."""
    return json.loads(encoded(field, value))
