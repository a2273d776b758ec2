"""Documents with the position of every value, so that an error can name the line; and a JSON reader that records them.

The reader accepts the same as `json`, except NaN and infinities, and needs nothing else.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from holdfast.plane.workflows.core.problems import DefinitionProblem, Path, TextPosition

DEPTH_MAX: Final = 100
DIGITS_MAX: Final = 300
BYTES_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ValuePosition:
    """The position of a value."""

    key: TextPosition  # of its key, or of the value itself in a list
    value: TextPosition  # the first character of its text, if it is a text
    inline: bool = False  # a text on one line without escapes, so its characters can be counted


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """A document with its positions."""

    value: Any
    spots: Mapping[Path, ValuePosition]
    repeated: tuple[tuple[Path, TextPosition], ...] = ()  # duplicate keys

    def place(self, problem: DefinitionProblem) -> TextPosition | None:
        """The position of a problem: the character, the field, or the object that lacks the field."""
        for length in range(len(problem.path), -1, -1):
            spot = self.spots.get(problem.path[:length])
            if spot is not None:
                if length == len(problem.path) and problem.position is not None and spot.inline:
                    return spot.value[0], spot.value[1] + problem.position
                return spot.key
        return None


class UnreadableSource(Exception):
    """A text is not a document."""

    def __init__(self, problem: str, fix: str, place: TextPosition | None = None) -> None:
        super().__init__(problem)
        self.problem, self.fix, self.place = problem, fix, place


_BLANK: Final = re.compile(r"[ \t\n\r]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_DECODER: Final = json.JSONDecoder()
_WORDS: Final = {"true": True, "false": False, "null": None}


def read_json(text: str) -> SourceDocument:
    """The document in a text, or `UnreadableSource`."""
    reading = _Reading(text)
    return SourceDocument(reading.document(), reading.spots, tuple(reading.repeated))


class _Reading:
    """One pass through a text."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]
        self.spots: dict[Path, ValuePosition] = {}
        self.repeated: list[tuple[Path, TextPosition]] = []

    def document(self) -> Any:
        """The only value."""
        value = self._value((), None)
        if self._next():
            self._fail("something follows the document", "remove it")
        return value

    def _value(self, path: Path, key: TextPosition | None) -> Any:
        character = self._next()
        begin, start = self._place(self._at), self._at
        if len(path) > DEPTH_MAX:
            self._fail("is nested too deeply", f"use at most {DEPTH_MAX} levels")
        if character == '"':
            value: Any = self._string()
            inline = self._at - start == len(value) + 2
            self.spots[path] = ValuePosition(key or begin, (begin[0], begin[1] + 1), inline)
            return value
        self.spots[path] = ValuePosition(key or begin, begin)
        if character == "{":
            return self._table(path)
        if character == "[":
            return self._list(path)
        return self._scalar()

    def _table(self, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._at += 1
        if self._took("}"):
            return found
        while True:
            if self._next() != '"':
                self._fail("a key in double quotes belongs here", 'write "key": value')
            at = self._place(self._at)
            key = self._string()
            if not self._took(":"):
                self._fail("a colon belongs here", 'write "key": value')
            if key in found:
                self.repeated.append(((*path, key), at))
            value = self._value((*path, key), at)
            found.setdefault(key, value)
            if self._took("}"):
                return found
            if not self._took(","):
                self._fail("a comma or } belongs here", "check the brackets")

    def _list(self, path: Path) -> list[Any]:
        found: list[Any] = []
        self._at += 1
        if self._took("]"):
            return found
        while True:
            found.append(self._value((*path, len(found)), None))
            if self._took("]"):
                return found
            if not self._took(","):
                self._fail("a comma or ] belongs here", "check the brackets")

    def _scalar(self) -> Any:
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        found = _NUMBER.match(self._text, self._at)
        if found is None:
            self._fail("a value belongs here" if self._at < len(self._text) else "ends too early", "mend the JSON")
        if len(found[0]) > DIGITS_MAX or not math.isfinite(float(found[0])):
            self._fail("is too large a number", "write a smaller one, or a text")
        self._at = found.end()
        return json.loads(found[0])

    def _string(self) -> str:
        try:
            text, self._at = _DECODER.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            self._at = error.pos
            self._fail("is no text of JSON", "end it with a quote, and escape \\ and control characters")
        return str(text)

    def _next(self) -> str:
        blank = _BLANK.match(self._text, self._at)
        self._at = self._at if blank is None else blank.end()
        return self._text[self._at : self._at + 1]

    def _took(self, character: str) -> bool:
        if self._next() != character:
            return False
        self._at += 1
        return True

    def _place(self, at: int) -> TextPosition:
        line = bisect_right(self._starts, at)
        return line, at - self._starts[line - 1] + 1

    def _fail(self, problem: str, fix: str) -> NoReturn:
        raise UnreadableSource(problem, fix, self._place(self._at))
