"""The inventory of locks: every key that the plane uses, with its kind, times and users.

Made from `families`, the declaration of the locks themselves, so the two cannot differ. With settings, it shows the
keys and times in effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.plane.locks.registry import FAMILIES, LockFamily, Release, Scope
from holdfast.plane.settings.lock_times import family_in_effect, is_renewed
from holdfast.plane.settings.settings import Settings

COLUMNS: Final = (
    "family",
    "key",
    "scope",
    "ttl",
    "renewed every",
    "gives up after",
    "released",
    "when busy",
    "when the store fails",
    "used by",
)


class LockEntry(NamedTuple):
    """One kind of lock."""

    family: str
    key: str
    scope: Scope
    ttl: float
    renew_every: float | None  # None: it is not renewed
    failures: int | None  # renewals in a row that may fail before it is lost
    release: Release
    acquire_timeout: float | None
    on_busy: str
    on_error: str
    used_by: str

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {**self._asdict(), "scope": str(self.scope), "release": str(self.release)}

    def cells(self) -> tuple[str, ...]:
        """For people, in the order of `COLUMNS`."""
        key = self.key.replace("{", "<").replace("}", ">")
        renewed = "never" if self.renew_every is None else plainly(self.renew_every)
        budget = "-" if self.failures is None else "1 failure" if self.failures == 1 else f"{self.failures} failures"
        return (
            *(self.family, key, str(self.scope), plainly(self.ttl), renewed, budget, str(self.release)),
            *(self.on_busy, self.on_error, self.used_by),
        )


def inventory(settings: Settings | None = None, declared: Mapping[str, LockFamily] = FAMILIES) -> Sequence[LockEntry]:
    """Every kind of lock, in the order of its declaration."""
    return [_line(family, settings) for family in declared.values()]


def markdown(lines: Sequence[LockEntry]) -> str:
    """The inventory as a Markdown table."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *map(_marked, lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def plainly(seconds: float) -> str:
    """A duration, to the hundredth."""
    return f"{round(seconds, 2):.12g} s"


def _line(family: LockFamily, settings: Settings | None) -> LockEntry:
    timed = family if settings is None else family_in_effect(settings, family)
    renewed = settings is None or is_renewed(settings, family)
    return LockEntry(
        family=family.name,
        key=timed.pattern,
        scope=family.scope,
        ttl=timed.ttl,
        renew_every=timed.renew_every if renewed else None,
        failures=timed.failures if renewed else None,
        release=family.release if renewed else Release.EXPIRY,
        acquire_timeout=family.acquire_timeout,
        on_busy=timed.when_busy,
        on_error=timed.when_failed,
        used_by=family.used_by,
    )


def _marked(line: LockEntry) -> tuple[str, ...]:
    family, key, *middle, used_by = line.cells()
    return (family, f"`{key}`", *middle, f"`{used_by}`")
