"""Facts about the hosts of a plane: free space and clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.ops.runbooks.evidence.locks import span


def size(count: int) -> str:
    """A number of bytes as people write it."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """One directory."""

    what: str  # that is kept in it
    path: str
    free: int | None
    total: int | None
    problem: str = ""

    def line(self) -> str:
        """One line of text."""
        if self.free is None or not self.total:
            return f"{self.what} in {self.path}: {self.problem or 'unknown'}"
        share = f"{100 * self.free / self.total:.1f} %"
        return f"{self.what} in {self.path}: {size(self.free)} free of {size(self.total)} ({share})"


@dataclass(frozen=True, slots=True)
class RoomFact:
    """The free space of each directory."""

    places: tuple[DiskSpace, ...]
    kept: int  # with less, processes are not ready

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        return [each.line() for each in self.places]

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ClockFact:
    """The clock of this host."""

    ahead: float  # seconds ahead of the database; negative: behind
    within: float  # how exact that is

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        where = "ahead of" if self.ahead >= 0 else "behind"
        return [f"this host is {span(abs(self.ahead))} {where} the database (measured within {span(self.within)})"]

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return asdict(self)
