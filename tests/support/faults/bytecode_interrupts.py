"""Interrupts at every bytecode: what a signal handler can do to a thread, made repeatable.

A signal handler runs between two bytecodes of the main thread, and may raise there (Ctrl-C) or call anything. `every`
does a piece of work once and writes down each bytecode that is executed inside the package. Then it repeats the work
once for each of them, and `At` strikes there.

A bytecode is known by its functions (all the way from the outermost one in the package), its offset, and its round: in
a loop, or a function that is called in one, the first `ROUNDS` are struck. A number on the way would not do: the way of
a second run may be longer or shorter than that of the first (it refills a store of tokens, it finds a thread asleep).

Left out is the beginning of the normal end of a `with` block (three constants and the call of `__exit__`): an exception
there would skip `__exit__`. CPython looks for signals after calls, at the start of functions and at backward jumps, so
it never delivers one there, and no Python code could be safe if it did. The same holds for the bytecode that returns a
value, which is outside of every `try` around it, and for those that follow in the caller until it calls something or
jumps back: a call of Python code is not a call of C, and its end is no place for signals. A call of a class is a call
of C: a signal may be delivered after its `__init__` and before the object is assigned, so this place is struck as well.
A NOP is left out, which the compiler may put between a `with` and the `try` inside it, where an exception would pass by
both. The beginning of a function is not left out, even of an `__exit__`: signals are delivered there, before a `try`
with which the function begins.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Collection, Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, NamedTuple, Self

import holdfast

PACKAGE = str(Path(holdfast.__file__).parent)
ROUNDS = 2  # of a loop. What a second one leaves behind can differ from the first, and a third is like the second
WAYS = 3  # that are written down; what they have in common has to be reached again
TRIES = 5  # to come to a bytecode again; what hangs on other threads does not happen each time
MISSED = 0.05  # the most of these that may not be reached again

BEGUN = -3  # in place of the offset: the function begins, and the `try` that it begins with does not protect it yet
MADE = -2  # in place of the offset: `__init__` has returned, and the object is not assigned yet
RETURNS = {code for name, code in dis.opmap.items() if name.startswith("RETURN_") and name != "RETURN_GENERATOR"}
PLACES = {code for name, code in dis.opmap.items() if name.startswith(("CALL", "JUMP_BACKWARD"))}  # for signals

Strike = Callable[[], None]
Inside = str | tuple[str, ...]  # what the paths of the files begin with whose bytecodes are struck
_Step = tuple[int, int]  # functions, and offset in the last of them


class Place(NamedTuple):
    """A bytecode on the way of a piece of work."""

    step: _Step
    round: int


class Interrupted(KeyboardInterrupt):
    """What the simulated signal handler raises."""


def raise_interrupted() -> None:
    """The handler of Ctrl-C."""
    raise Interrupted


# From Python 3.12 on, `f_trace_opcodes` holds from the next call on, and is lost when the function is called untraced.
# `sys.monitoring` tells of every bytecode of a function that was named before it is called.
_MONITOR: Any = getattr(sys, "monitoring", None)
_TOOL = 4  # of the six that the interpreter knows, one without a use of its own
_watched: list[CodeType] = []


def _watch(codes: Collection[CodeType], told: Callable[[CodeType, int], None]) -> None:
    """Tell about each bytecode of these functions before it is executed, in whichever thread."""
    if _MONITOR is not None:
        if _MONITOR.get_tool(_TOOL) is None:
            _MONITOR.use_tool_id(_TOOL, __name__)
        for code in codes:
            _MONITOR.set_local_events(_TOOL, code, _MONITOR.events.INSTRUCTION)
        _watched.extend(codes)
        _MONITOR.register_callback(_TOOL, _MONITOR.events.INSTRUCTION, told)


def _unwatch() -> None:
    if _MONITOR is not None and _watched:
        _MONITOR.register_callback(_TOOL, _MONITOR.events.INSTRUCTION, None)
        for code in _watched:
            _MONITOR.set_local_events(_TOOL, code, 0)
        _watched.clear()


class Functions:
    """Gives a number to each way in which functions of the package call each other."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int, CodeType], int] = {}
        self._codes: list[CodeType] = []  # by number, from 1 on

    @property
    def codes(self) -> set[CodeType]:
        """The functions that have a number."""
        return set(self._codes)

    def code(self, number: int) -> CodeType:
        """The function with that number."""
        return self._codes[number - 1]

    def number(self, caller: int, offset: int, code: CodeType) -> int:
        """The number of a function that was called at this offset of a caller."""
        number = self._numbers.setdefault((caller, offset, code), len(self._numbers) + 1)
        if number > len(self._codes):
            self._codes.append(code)
        return number


class Tracer:
    """Follows the calls of this thread inside the package. `wanted` are the functions whose bytecodes are looked at."""

    def __init__(self, functions: Functions, inside: Inside) -> None:
        self._functions = functions
        self._inside = inside
        self._calls: list[int] = []
        self._returned = False  # from a function of the package, and the caller has not come to a place for signals yet
        # One object for as long as anything is traced: the interpreter was seen to call one that was gone.
        self._tracer = self._trace

    def __enter__(self) -> Self:
        self.resume()
        return self

    def __exit__(self, *_: object) -> None:
        self.pause()

    def resume(self) -> None:
        """Count from here on."""
        self._calls.clear()
        self._thread = get_ident()
        _watch(self.watched, self._instruction)
        sys.settrace(self._tracer)

    @staticmethod
    def pause() -> None:
        """Do not count for a while."""
        sys.settrace(None)
        _unwatch()

    @property
    def watched(self) -> Collection[CodeType]:
        """The functions whose bytecodes are of interest and that have been called before."""
        raise NotImplementedError

    def wanted(self, functions: int) -> bool:
        """Whether the bytecodes of these functions are of interest."""
        raise NotImplementedError

    def executes(self, step: _Step, frame: FrameType, possible: bool) -> None:
        """A bytecode is executed next. `possible`: a signal may be delivered there."""
        raise NotImplementedError

    def _trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if event == "call":
            if not code.co_filename.startswith(self._inside):
                return None
            caller = frame.f_back
            offset = -1 if caller is None or not caller.f_code.co_filename.startswith(self._inside) else caller.f_lasti
            functions = self._functions.number(self._calls[-1] if self._calls else 0, offset, code)
            self._calls.append(functions)
            frame.f_trace_lines, frame.f_trace_opcodes = False, _MONITOR is None and self.wanted(functions)
            self._returned = False
            if frame.f_lasti <= 0 and begins_with_try(code):
                self.executes((functions, BEGUN), frame, True)
        elif event == "return":
            if self._calls:
                if _makes(frame):
                    self.executes((self._calls[-1], MADE), frame, True)
                self._calls.pop()
            self._returned = True
        elif event == "opcode":
            self._comes_to(frame)
        return self._tracer

    def _instruction(self, code: CodeType, _: int) -> None:
        frame = sys._getframe(1)
        if get_ident() == self._thread and self._calls and self._functions.code(self._calls[-1]) is code:
            self._comes_to(frame)

    def _comes_to(self, frame: FrameType) -> None:
        """A bytecode of the innermost function is executed next."""
        if self._calls:
            possible = not self._returned and frame.f_lasti not in left_out(frame.f_code)
            self.executes((self._calls[-1], frame.f_lasti), frame, possible)
            if frame.f_code.co_code[frame.f_lasti] in PLACES:
                self._returned = False


class Way(Tracer):
    """Writes down where a signal may strike."""

    def __init__(self, functions: Functions, inside: Inside) -> None:
        super().__init__(functions, inside)
        self._rounds: dict[_Step, int] = {}
        self.places: list[Place] = []

    @property
    def watched(self) -> Collection[CodeType]:
        """All of them."""
        return self._functions.codes

    def wanted(self, functions: int) -> bool:
        """All of them."""
        del functions
        return True

    def executes(self, step: _Step, frame: FrameType, possible: bool) -> None:
        """Write it down."""
        del frame
        number = self._rounds[step] = self._rounds.get(step, 0) + 1
        if possible and number <= ROUNDS:
            self.places.append(Place(step, number))


class At(Tracer):
    """Strikes once, before a bytecode."""

    def __init__(self, functions: Functions, place: Place, strike: Strike, inside: Inside) -> None:
        super().__init__(functions, inside)
        self._place = place
        self._left = place.round
        self._strike = strike
        self.where: str | None = None

    @property
    def watched(self) -> Collection[CodeType]:
        """The function of the place."""
        return [self._functions.code(self._place.step[0])]

    def wanted(self, functions: int) -> bool:
        """The functions of the place, until it has struck."""
        return functions == self._place.step[0] and self.where is None

    def executes(self, step: _Step, frame: FrameType, possible: bool) -> None:
        """Strike, if this is it."""
        del possible  # the callees of this function are not looked at, so it is not known here
        if self.where is None and step == self._place.step:
            self._left -= 1
            if self._left == 0:
                self.where = f"{frame.f_code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno} +{frame.f_lasti}"
                self._strike()


def _makes(frame: FrameType) -> bool:
    """Whether this is the end of an `__init__` that was called for a class, and not by the one of a subclass."""
    code, caller = frame.f_code, frame.f_back
    if code.co_name != "__init__" or caller is None or code.co_code[frame.f_lasti] not in RETURNS:
        return False
    names = caller.f_code.co_varnames
    return not names or caller.f_locals.get(names[0]) is not frame.f_locals[code.co_varnames[0]]


@cache
def begins_with_try(code: CodeType) -> bool:
    """Whether this is a function that begins with `try:`, for which the compiler writes a NOP that is left out."""
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return False  # these have not begun when they are called, so nothing is lost
    names = (step.opname for step in dis.get_instructions(code))
    return next(name for name in names if name not in {"RESUME", "COPY_FREE_VARS", "MAKE_CELL"}) == "NOP"


@cache
def left_out(code: CodeType) -> frozenset[int]:
    """Where the interpreter does not deliver signals: see the head of this module."""
    found: set[int] = set()
    steps = list(dis.get_instructions(code))
    for at, step in enumerate(steps):
        if step.opname in {"RETURN_VALUE", "RETURN_CONST", "NOP"}:
            found.add(step.offset)
        if step.opname == "WITH_EXCEPT_START":
            found |= {steps[at - 1].offset, step.offset}
        nones = [each.opname == "LOAD_CONST" and each.argval is None for each in steps[at : at + 3]]
        if len(nones) == 3 and all(nones):
            rest = steps[at : at + 5]
            call = next((each for each in rest if each.opname == "CALL"), None)
            if call is not None:
                found |= {each.offset for each in rest if each.offset <= call.offset}
                before = takewhile(lambda each: each.opname == "SWAP", reversed(steps[:at]))
                found |= {each.offset for each in before}  # the value of a `return` in the block is put aside first
    return frozenset(found)


def every(
    work: Callable[[Tracer], Any],
    strike: Strike = raise_interrupted,
    *,
    but: Callable[[Tracer], Any] = lambda _: None,
    most: int | None = None,
    inside: Inside = PACKAGE,
) -> Iterator[str]:
    """Do the work again and again, struck at another bytecode each time. Yields where it was struck, each time.

    The work gets the tracer, to pause it for parts that are not meant. `but`: work whose bytecodes are passed over.
    `most`: strike at so many bytecodes only, evenly spread over the way.
    """
    functions = Functions()
    known = {place for way in _ways(functions, but, 1, inside) for place in way}
    ways = _ways(functions, work, WAYS, inside)
    places = [place for place in dict.fromkeys(place for way in ways for place in way) if place not in known]
    usual = set(places).intersection(*ways)  # what one way alone has, such as a refill, need not come again
    if most is not None and most < len(places):
        places = [places[at * len(places) // most] for at in range(most)]
        usual.intersection_update(places)
    assert usual
    missed = 0
    for place in places:
        for _ in range(TRIES):
            at = At(functions, place, strike, inside)
            try:
                with at:
                    work(at)
            except Interrupted:
                assert at.where is not None
            finally:
                Tracer.pause()
            if at.where is not None:
                yield at.where
                break
        else:
            missed += place in usual
    # One of a small sample may be missed: on a server that answers late, the driver takes another way.
    assert missed <= max(1, MISSED * len(usual)), f"{missed} of {len(usual)} bytecodes were not reached again"


def _ways(functions: Functions, work: Callable[[Tracer], Any], number: int, inside: Inside) -> list[list[Place]]:
    """So many, after a first one that loads scripts and makes connections."""
    found: list[list[Place]] = []
    for _ in range(1 + number):
        way = Way(functions, inside)
        with way:
            work(way)
        Tracer.pause()
        found.append(way.places)
    return found[1:]
