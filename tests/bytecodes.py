"""Interrupts at every bytecode: what a signal handler can do to a thread, made repeatable.

A signal handler runs between two bytecodes of the main thread, and may raise there (Ctrl-C) or call anything. `At` does
the same at the n-th bytecode that is executed inside the package. `every` repeats a piece of work, interrupted one
bytecode later each time, until the work gets through.

Left out is the beginning of the normal end of a `with` block (three constants and the call of `__exit__`): an exception
there would skip `__exit__`. CPython looks for signals after calls, at the start of functions and at backward jumps, so
it never delivers one there, and no Python code could be safe if it did. The same holds for the bytecode that returns a
value, which is outside of every `try` around it, and for the one that follows in the caller: a call of Python code is
not a call of C, and its end is no place for signals. The first bytecode *inside* an `__exit__` that
is written in Python is not left out: there signals are delivered.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

import holdfast

PACKAGE = str(Path(holdfast.__file__).parent)
MOST = 20_000  # bytecodes of one piece of work, far more than any has

Strike = Callable[[], None]


class Interrupted(KeyboardInterrupt):
    """What the simulated signal handler raises."""


def raise_interrupted() -> None:
    """The handler of Ctrl-C."""
    raise Interrupted


class At:
    """Strikes once, before the n-th bytecode that this thread executes inside the package."""

    def __init__(self, number: int, strike: Strike = raise_interrupted, inside: str = PACKAGE) -> None:
        self._left = number
        self._strike = strike
        self._inside = inside
        self.where: str | None = None
        self._returned = False  # the last event was the return of a function of the package
        # One object for as long as anything is traced: the interpreter was seen to call one that was gone.
        self._tracer = self._trace

    def __enter__(self) -> Self:
        self.resume()
        return self

    def __exit__(self, *_: object) -> None:
        self.pause()

    def resume(self) -> None:
        """Count from here on."""
        sys.settrace(self._tracer)

    @staticmethod
    def pause() -> None:
        """Do not count for a while."""
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(self._inside):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        returned, self._returned = self._returned, event == "return"
        if event == "opcode" and self.where is None and not returned and frame.f_lasti not in left_out(frame.f_code):
            self._left -= 1
            if self._left < 0:
                self.where = f"{frame.f_code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno} +{frame.f_lasti}"
                self._strike()
        return self._tracer


@cache
def left_out(code: CodeType) -> frozenset[int]:
    """Where the interpreter does not deliver signals: see the head of this module."""
    found: set[int] = set()
    steps = list(dis.get_instructions(code))
    for at, step in enumerate(steps):
        if step.opname == "RETURN_VALUE":
            found.add(step.offset)
        if step.opname == "WITH_EXCEPT_START":
            found |= {steps[at - 1].offset, step.offset}
        nones = [each.opname == "LOAD_CONST" and each.argval is None for each in steps[at : at + 3]]
        if len(nones) == 3 and all(nones):
            rest = steps[at : at + 5]
            call = next((each for each in rest if each.opname == "CALL"), None)
            if call is not None:
                found |= {each.offset for each in rest if each.offset <= call.offset}
                if at and steps[at - 1].opname == "SWAP":  # the value of a `return` in the block is put aside first
                    found.add(steps[at - 1].offset)
    return frozenset(found)


def every(
    work: Callable[[At], Any], strike: Strike = raise_interrupted, *, step: int = 1, first: int = 0
) -> Iterator[str]:
    """Do the work again and again, struck one bytecode (or `step` of them) later each time, until it gets through.

    Yields where it was struck, each time. The work gets the interrupt, to pause it for parts that are not meant.
    """
    for number in range(first, MOST, step):
        at = At(number, strike)
        try:
            with at:
                work(at)
        except Interrupted:
            assert at.where is not None
        finally:
            At.pause()
        if at.where is None:
            return
        yield at.where
    raise AssertionError("the work never got through")
