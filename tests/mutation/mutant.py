"""A mutant: a bug that can be planted, the project that had it, and the detector that finds it.

A bug is planted with pytest's `monkeypatch`, so nothing of it is left behind. It counts as found only when the detector
fails for the reason that is declared with it: the rule, the sentence, or the assertion that must break.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pytest

Plant = Callable[[pytest.MonkeyPatch], None]


class Survived(AssertionError):
    """A mutant was not found, or was found for another reason than the one declared: a hole in the tests."""


@dataclass(frozen=True, slots=True)
class Components:
    """What a detector may use."""

    folder: Path  # empty, and for this detector only
    redis_url: Callable[[], str]  # a real server; started when it is first asked for
    fixture: Callable[[str], Any]  # any other fixture of the suite, by its name


class Detector(Protocol):
    """Finds a bug by a declared sign."""

    server: ClassVar[bool]  # whether it needs a real server

    @property
    def who(self) -> str:
        """The detector, for the page."""
        ...

    @property
    def sign(self) -> str:
        """What must break, for the page."""
        ...

    @property
    def claimant(self) -> str:
        """The test, or check of a kit, that finds it, under the name with which it claims requirements."""
        ...

    def detect(self, components: Components) -> None:
        """Return if the mutant shows by the declared sign; raise `Survived` if it does not."""
        ...


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mutant."""

    name: str  # the sentence that the name of its function spells
    mistake: str  # what it does, in one sentence
    whose: str  # the project and the number of the report, or the mistake that many make
    where: str  # the module in which it is planted
    plant: Plant
    detector: Detector
    attacks: tuple[str, ...] = ()  # the requirements that it breaks, each claimed by the detector


class MutantGroup:
    """The mutants of one file, in the order in which they are written there."""

    def __init__(self) -> None:
        self.mutants: list[Mutant] = []

    def keep(
        self, whose: str, *, where: str, found_by: Detector, attacks: tuple[str, ...] = ()
    ) -> Callable[[Plant], Plant]:
        """Enter a mutant. Its name is that of the function that plants it, and the docstring says what it does."""

        def enter(plant: Plant) -> Plant:
            name = getattr(plant, "__name__", "").replace("_", " ")
            mistake = " ".join((plant.__doc__ or "").split())
            self.mutants.append(Mutant(name, mistake, whose, where, plant, found_by, attacks))
            return plant

        return enter
