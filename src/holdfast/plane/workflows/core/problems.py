"""Problems of a definition, each with its position and a fix. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from holdfast.errors import BadInput

PROBLEMS_MAX: Final = 100  # more are not useful, and each costs a search for suggestions

Path: TypeAlias = tuple[str | int, ...]
TextPosition: TypeAlias = tuple[int, int]  # line and column, both from 1


@dataclass(frozen=True, slots=True)
class DefinitionProblem:
    """One problem of a definition."""

    path: Path  # ("steps", "pay", "after", 0)
    problem: str
    fix: str
    position: int | None = None  # the character in the text, from 0, if it is about one

    @property
    def step(self) -> str | None:
        """The step that it is about; None: the workflow."""
        return str(self.path[1]) if len(self.path) > 1 and self.path[0] == "steps" else None

    def __str__(self) -> str:
        rest = self.path if self.step is None else self.path[2:]
        where = "" if self.step is None else f"step {self.step!r}: "
        field = f"{dotted(rest)}: " if rest else ""
        return f"{where}{field}{self.problem}; {self.fix}"


class BadWorkflow(BadInput):
    """An unusable definition. `problems` has all its problems; the text has one on each line."""

    def __init__(
        self, source: str, problems: Sequence[DefinitionProblem], places: Sequence[TextPosition | None] = ()
    ) -> None:
        first = problems[0]
        super().__init__(dotted(first.path) or "workflow", first.problem, first.fix)
        self.source = source
        self.problems = tuple(problems)
        self.places = tuple(places) or (None,) * len(problems)
        self.args = ("\n".join(self.lines),)

    @property
    def lines(self) -> list[str]:
        """Every problem as `file:line:column: step 'x': problem; fix`."""
        return [
            f"{':'.join([self.source, *map(str, place or ())])}: {problem}"
            for problem, place in zip(self.problems, self.places, strict=True)
        ]


def dotted(path: Path) -> str:
    """A path as text: `steps.pay.after[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
