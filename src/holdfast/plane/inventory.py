"""The inventory of locks: every key that the plane takes, what kind it is, how long it lasts, and who takes it.

Made from `families`, which is also where the locks themselves come from, so that it cannot say anything else than what
runs. Loops are shown with the interval that is in effect, if settings are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.core.looping import Mode
from holdfast.plane.families import FAMILIES, LockFamily, Release, Scope
from holdfast.plane.setting_rules import LOOPS
from holdfast.plane.settings import Settings

COLUMNS: Final = (
    "family",
    "key",
    "scope",
    "ttl",
    "renewed every",
    "released",
    "when busy",
    "when the store fails",
    "used by",
)


class Line(NamedTuple):
    """One kind of lock."""

    family: str
    key: str
    scope: Scope
    ttl: float
    renew_every: float | None  # None: it is not renewed
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
        ends = str(self.release)
        return (
            *(self.family, key, str(self.scope), plainly(self.ttl), renewed, ends),
            *(self.on_busy, self.on_error, self.used_by),
        )


def inventory(settings: Settings | None = None, declared: Mapping[str, LockFamily] = FAMILIES) -> Sequence[Line]:
    """Every kind of lock, in the order of its declaration."""
    loops = {family.name: loop for loop, family in LOOPS.items()}
    return [_line(family, settings, loops.get(family.name)) for family in declared.values()]


def markdown(lines: Sequence[Line]) -> str:
    """The inventory as a table for a page."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *map(_marked, lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def plainly(seconds: float) -> str:
    """A length of time, to the hundredth."""
    return f"{round(seconds, 2):.12g} s"


def _line(family: LockFamily, settings: Settings | None, loop: str | None) -> Line:
    ttl, rotating = family.ttl, False
    if settings is not None and loop is not None:
        ttl = family.ttl_for(settings.value(f"{loop}.interval"))
        rotating = settings.value(f"{loop}.lead") == Mode.ROTATING
    elif settings is not None and family.name == "worker.job":
        ttl = settings.worker.lease_ttl
    elif settings is not None and family.name == "scheduler.job":
        ttl = settings.scheduler.job_ttl
    elif settings is not None and family.name == "workflow.run":
        ttl = settings.engine.run_ttl
    return Line(
        family=family.name,
        key=family.pattern,
        scope=family.scope,
        ttl=ttl,
        renew_every=None if rotating else ttl / 3,
        release=Release.EXPIRY if rotating else family.release,
        acquire_timeout=family.acquire_timeout,
        on_busy=family.on_busy,
        on_error=family.on_error,
        used_by=family.used_by,
    )


def _marked(line: Line) -> tuple[str, ...]:
    family, key, *middle, used_by = line.cells()
    return (family, f"`{key}`", *middle, f"`{used_by}`")
