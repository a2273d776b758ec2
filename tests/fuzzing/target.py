"""What a fuzz target is: bytes in, nothing out, and an exception if a promise is broken. See docs/fuzzing.md.

A target turns the bytes into whatever an enemy, a broken disk or a typing error could put before a parser, calls the
real one, and checks what came of it. Allowed are a value within its limits, or an error of ours that names what is
wrong and how to mend it. Everything else is a finding: another exception, a hang, memory without end, a secret in a
text, and above all a lease, a write or a message that was believed and should not have been.

The targets are the same for every driver: Hypothesis in the suite, atheris by coverage, and plain mutation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.errors import BadExpression, BadInput, ExpressionFailed, HoldfastError
from holdfast.plane.workflows.core.problems import BadWorkflow

CORPUS: Final = Path(__file__).resolve().parent / "corpus"
BYTES_MAX: Final = 8_192  # what drivers make at most; a corpus may have longer ones


@dataclass(frozen=True)
class Target:
    """One kind of hostile input."""

    name: str
    run: Callable[[bytes], None]
    promise: str
    words: tuple[bytes, ...] = ()  # what a mutation puts in, so that it gets past the first check

    def corpus(self) -> list[Path]:
        """Inputs that were interesting once: seeds, and every finding. Each is tried first."""
        return sorted((CORPUS / self.name).glob("*.bin"))


def argument(data: bytes) -> str:
    """Bytes as Python hands on what stands in the environment or on a command line."""
    return data.decode("utf-8", "surrogateescape")


def parted(data: bytes, parts: int) -> list[bytes]:
    """Several inputs from one, divided by lines of their own."""
    found = data.split(b"\n--\n", parts - 1)
    return found + [b""] * (parts - len(found))


def refused(error: HoldfastError, *, secret: str | None = None) -> None:
    """Check that an error of ours is helpful, can be printed anywhere, and contains no secret."""
    text = str(error)
    assert text.strip(), f"{type(error).__name__} says nothing"
    text.encode("utf-8")  # half a surrogate pair would end the program that prints it
    if isinstance(error, BadInput) and not isinstance(error, BadWorkflow):
        assert error.field, f"no field: {text}"
        assert error.problem, f"no problem: {text}"
        assert error.fix, f"no fix: {text}"
    if isinstance(error, BadWorkflow):
        assert error.problems
        assert all(each.problem and each.fix for each in error.problems)
    if isinstance(error, BadExpression | ExpressionFailed):
        assert 0 <= error.position <= len(error.text)
    if secret is not None:
        assert secret not in text, f"the secret is in the text: {text}"


def whole(value: object, low: int, high: int) -> None:
    """See that a value is a whole number within its limits."""
    assert type(value) is int, f"{value!r} is no whole number"
    assert low <= value <= high, f"{value} is not within {low} and {high}"
