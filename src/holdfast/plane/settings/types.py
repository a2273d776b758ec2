"""Types of settings: a small class for each kind of value, which reads it from a file or from text, or refuses it.

Promises: a value is valid or `BadInput` with a fix. A secret in a URL never appears in a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from holdfast.core.duration_text import parse_duration_ns
from holdfast.core.lease.error_policy import OnError, parse_policy
from holdfast.core.strict_parsers import NotJson, json_of
from holdfast.errors import BadInput
from holdfast.plane.approvals.rules import ApprovalRules, parse_rules
from holdfast.plane.model.records import check_name, check_text, check_whole
from holdfast.stores.registry import redacted
from holdfast.types import NS

TEXT_MAX: Final = 2000
YEAR_S: Final = 366 * 86_400.0

_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"0", "false", "no", "off"})


class SettingKind(Protocol):
    """One kind of value."""

    @property
    def takes(self) -> str:
        """The accepted values, for people."""
        ...

    def check(self, name: str, value: object) -> Any:
        """A value from a file or a program, or `BadInput`."""
        ...

    def parse(self, name: str, text: str) -> Any:
        """A value from text, as in the environment, or `BadInput`."""
        ...

    def shown(self, value: Any) -> Any:
        """The value for output."""
        ...


@dataclass(frozen=True, slots=True)
class Seconds:
    """A duration: a number of seconds, or text such as 30s, 500ms or 1h30m."""

    low: float = 0.0
    high: float = YEAR_S

    @property
    def takes(self) -> str:
        """See `SettingKind`."""
        return "seconds, or text such as 30s, 500ms, 5m"

    def check(self, name: str, value: object) -> float:
        """See `SettingKind`."""
        return parse_duration_ns(name, value, low_ns=round(self.low * NS), high_ns=round(self.high * NS)) / NS

    def parse(self, name: str, text: str) -> float:
        """See `SettingKind`."""
        return self.check(name, text)

    def shown(self, value: float) -> float:
        """See `SettingKind`."""
        return value


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number."""

    low: int
    high: int

    @property
    def takes(self) -> str:
        """See `SettingKind`."""
        return f"{self.low} to {self.high}"

    def check(self, name: str, value: object) -> int:
        """See `SettingKind`."""
        return check_whole(name, value, self.low, self.high)

    def parse(self, name: str, text: str) -> int:
        """See `SettingKind`."""
        digits = text.strip().removeprefix("-")
        plain = digits.isascii() and digits.isdecimal() and len(digits) < 20
        return self.check(name, int(text) if plain else text)

    def shown(self, value: int) -> int:
        """See `SettingKind`."""
        return value


@dataclass(frozen=True, slots=True)
class Amount:
    """A number."""

    low: float
    high: float
    unit: str

    @property
    def takes(self) -> str:
        """See `SettingKind`."""
        return f"{self.unit}, {self.low:g} to {self.high:g}"

    def check(self, name: str, value: object) -> float:
        """See `SettingKind`."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            raise BadInput(name, f"{_shown(value)} is out of range", f"give {self.takes}")
        return float(value)

    def parse(self, name: str, text: str) -> float:
        """See `SettingKind`."""
        try:
            return self.check(name, float(text))
        except ValueError as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(name, f"{_shown(text)} is not a number", f"give {self.takes}") from None

    def shown(self, value: float) -> float:
        """See `SettingKind`."""
        return value


@dataclass(frozen=True, slots=True)
class Modes:
    """A table of risk classes with their modes; in the environment as `low=fail_open,high=fail_closed`."""

    takes: str = field(default="risk classes, each with fail_open, fail_closed or wait", init=False)

    def check(self, name: str, value: object) -> tuple[tuple[str, OnError], ...]:
        """See `SettingKind`."""
        return tuple(sorted(parse_policy(value, name).classes.items()))

    def parse(self, name: str, text: str) -> tuple[tuple[str, OnError], ...]:
        """See `SettingKind`."""
        pairs = [each.partition("=") for each in text.split(",") if each.strip()]
        if any(not mark for _, mark, _ in pairs):
            raise BadInput(name, f"{_shown(text)} is not understood", "write low=fail_open,high=fail_closed")
        return self.check(name, {risk.strip(): mode.strip() for risk, _, mode in pairs})

    def shown(self, value: tuple[tuple[str, OnError], ...]) -> dict[str, str]:
        """See `SettingKind`."""
        return {risk: str(mode) for risk, mode in value}


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text."""

    example: str

    @property
    def takes(self) -> str:
        """See `SettingKind`."""
        return f"text such as {self.example}"

    def check(self, name: str, value: object) -> str:
        """See `SettingKind`."""
        return check_text(name, value, TEXT_MAX)

    def parse(self, name: str, text: str) -> str:
        """See `SettingKind`."""
        return self.check(name, text)

    def shown(self, value: str) -> str:
        """See `SettingKind`."""
        return value


@dataclass(frozen=True, slots=True)
class CheckedWord:
    """One word that its own rule accepts."""

    example: str
    rule: Callable[[str, object], str]  # returns the word, or raises `BadInput` for a field

    @property
    def takes(self) -> str:
        """See `SettingKind`."""
        return f"a word such as {self.example}"

    def check(self, name: str, value: object) -> str:
        """See `SettingKind`."""
        return self.rule(name, value)

    def parse(self, name: str, text: str) -> str:
        """See `SettingKind`."""
        return self.rule(name, text)

    def shown(self, value: str) -> str:
        """See `SettingKind`."""
        return value


@dataclass(frozen=True, slots=True)
class Url:
    """A URL, whose password is never shown."""

    schemes: tuple[str, ...]
    examples: str

    @property
    def takes(self) -> str:
        """See `SettingKind`."""
        return self.examples

    def check(self, name: str, value: object) -> str:
        """See `SettingKind`."""
        if not isinstance(value, str):
            raise BadInput(name, f"{type(value).__name__} is not a URL", f"use {self.examples}")
        scheme, mark, rest = value.partition("://")
        known = scheme.lower().partition("+")[0] in self.schemes
        if not mark or not known or not rest.strip("/") or not value.isprintable() or len(value) > TEXT_MAX:
            raise BadInput(name, f"{_shown(redacted(value))} cannot be used here", f"use {self.examples}")
        return value

    def parse(self, name: str, text: str) -> str:
        """See `SettingKind`."""
        return self.check(name, text)

    def shown(self, value: str) -> str:
        """See `SettingKind`."""
        return redacted(value)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def takes(self) -> str:
        """See `SettingKind`."""
        return " or ".join(self.words)

    def check(self, name: str, value: object) -> str:
        """See `SettingKind`."""
        if not isinstance(value, str) or value not in self.words:
            raise BadInput(name, f"{_shown(value)} is not a choice", f"use {self.takes}")
        return value

    def parse(self, name: str, text: str) -> str:
        """See `SettingKind`."""
        return self.check(name, text.strip().lower())

    def shown(self, value: str) -> str:
        """See `SettingKind`."""
        return value


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    takes: str = field(default="true or false", init=False)

    def check(self, name: str, value: object) -> bool:
        """See `SettingKind`."""
        if not isinstance(value, bool):
            raise BadInput(name, f"{_shown(value)} is neither true nor false", "give true or false, without quotes")
        return value

    def parse(self, name: str, text: str) -> bool:
        """See `SettingKind`."""
        word = text.strip().lower()
        return self.check(name, True if word in _YES else False if word in _NO else text)

    def shown(self, value: bool) -> bool:
        """See `SettingKind`."""
        return value


@dataclass(frozen=True, slots=True)
class NameList:
    """A list of names; in the environment separated by commas."""

    takes: str = field(default="a list of names", init=False)

    def check(self, name: str, value: object) -> tuple[str, ...]:
        """See `SettingKind`."""
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
            raise BadInput(name, f"{_shown(value)} is not a list", 'give a list such as ["default", "gpu"]')
        names = tuple(check_name(name, each) for each in value)
        if len(set(names)) < len(names):
            raise BadInput(name, "has a name twice", "give each name once")
        return names

    def parse(self, name: str, text: str) -> tuple[str, ...]:
        """See `SettingKind`."""
        return self.check(name, [each.strip() for each in text.split(",")])

    def shown(self, value: tuple[str, ...]) -> list[str]:
        """See `SettingKind`."""
        return list(value)


@dataclass(frozen=True, slots=True)
class Rules:
    """Approval rules: a table for each; in the environment as JSON."""

    takes: str = field(default="[[approvals.rules]] for each, with name, effect, topics, tenants, labels", init=False)

    def check(self, name: str, value: object) -> ApprovalRules:
        """See `SettingKind`."""
        return parse_rules(value, name)

    def parse(self, name: str, text: str) -> ApprovalRules:
        """See `SettingKind`."""
        try:
            value = json_of(text)
        except NotJson as error:
            raise BadInput(name, str(error), "give a list of rules, as in the file") from None
        return self.check(name, value)

    def shown(self, value: ApprovalRules) -> list[str]:
        """See `SettingKind`."""
        return [f"{rule.name}: {rule.effect} {', '.join(rule.topics)}" for rule in value.rules]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
