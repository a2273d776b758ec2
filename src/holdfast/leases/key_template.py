"""Lock names made from the arguments of a function: `"tenant:{tenant_id}"`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any

from holdfast.errors import BadInput

LEASE = "lease"


class NameTemplate:
    """A name with places for arguments, checked against the function it is for when that is decorated."""

    def __init__(self, template: str, function: Callable[..., Any]) -> None:
        self._template = template
        signature = inspect.signature(function)
        self.wants_lease = LEASE in signature.parameters
        if self.wants_lease:
            _check_lease_parameter(signature, function)
        kept = [parameter for name, parameter in signature.parameters.items() if name != LEASE]
        self._signature = signature.replace(parameters=kept)
        try:
            fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
        except ValueError as error:
            raise BadInput("name", f"{template!r} is not a template ({error})", "use {argument} places") from None
        for field in fields:
            if field not in self._signature.parameters:
                raise BadInput(
                    "name",
                    f"{{{field}}} is not an argument of {function.__qualname__}",
                    f"use {', '.join(self._signature.parameters) or 'a name without places'}",
                )

    def fill(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The name for one call. Raises `TypeError` for arguments that the function would not take."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return self._template.format(**bound.arguments)


def _check_lease_parameter(signature: inspect.Signature, function: Callable[..., Any]) -> None:
    """The lease is passed by name, so no argument that is passed by place may stand behind it."""
    kind = inspect.Parameter
    by_place = {kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD, kind.VAR_POSITIONAL}
    placed = [each for each in signature.parameters.values() if each.kind in by_place]
    lease = signature.parameters[LEASE]
    if lease.kind is kind.KEYWORD_ONLY or (lease.kind is kind.POSITIONAL_OR_KEYWORD and lease is placed[-1]):
        return
    raise BadInput(
        LEASE, f"cannot be passed by name to {function.__qualname__}", "make it the last, after a star: (…, *, lease)"
    )
