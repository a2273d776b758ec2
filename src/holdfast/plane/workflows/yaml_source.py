"""A YAML reader that records the position of every value. Needs PyYAML, and accepts the part of YAML that equals JSON.

Promises: one document of tables, lists and scalars. Aliases, anchors, tags and merge keys are refused, so the result
cannot grow and contains only plain values. Duplicate keys are reported. Plain scalars are numbers, `true`, `false` and
`null` as in JSON and YAML 1.2: `on`, `no`, `12:30` and `2024-01-01` are texts.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import yaml

from holdfast.plane.workflows.core.problems import Path, TextPosition
from holdfast.plane.workflows.source import DEPTH_MAX, DIGITS_MAX, SourceDocument, UnreadableSource, ValuePosition

_WHOLE: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]{1,4})?\Z")
_WORDS: Final = {"true": True, "false": False, "null": None, "~": None, "": None}


class _Composer(yaml.SafeLoader):
    """Composes nodes, and refuses those without a counterpart in JSON, with their position."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """See `yaml.composer`."""
        event = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs leave its types out
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise UnreadableSource(
                "anchors (&) and aliases (*) are not taken", "write it out", _place(event.start_mark)
            )
        if getattr(event, "tag", None) is not None:
            raise UnreadableSource(f"the tag {event.tag} is not taken", "remove it", _place(event.start_mark))
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise UnreadableSource("is nested too deeply", f"use at most {DEPTH_MAX} levels", _place(event.start_mark))
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Reading:
    """Converts nodes to values, and records their positions."""

    def __init__(self) -> None:
        self.spots: dict[Path, ValuePosition] = {}
        self.repeated: list[tuple[Path, TextPosition]] = []

    def value(self, node: yaml.Node, path: Path, key: TextPosition | None = None) -> Any:
        """The value of a node."""
        begin = _place(node.start_mark)
        self.spots[path] = ValuePosition(key or begin, begin)
        if isinstance(node, yaml.MappingNode):
            return self._table(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(each, (*path, place)) for place, each in enumerate(node.value)]
        if not isinstance(node, yaml.ScalarNode):
            raise UnreadableSource("is no JSON value", "use tables, lists, texts and numbers", begin)
        # Positions inside a text are exact only if it is written on one line without escapes.
        quote = 1 if node.style in {'"', "'"} else 0
        inline = node.end_mark.index - node.start_mark.index == len(node.value) + 2 * quote
        self.spots[path] = ValuePosition(key or begin, (begin[0], begin[1] + quote), inline)
        return node.value if node.style is not None else _plain(node.value, begin)

    def _table(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            at = _place(key_node.start_mark)
            if not isinstance(key_node, yaml.ScalarNode) or (key_node.value == "<<" and key_node.style is None):
                raise UnreadableSource("this cannot be a key", "use a text", at)
            key = str(key_node.value)
            if key in found:
                self.repeated.append(((*path, key), at))
                continue
            found[key] = self.value(value_node, (*path, key), at)
        return found


def read_yaml(text: str) -> SourceDocument:
    """The document in a text, or `UnreadableSource`."""
    loader = None
    try:
        loader = _Composer(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = "there are several documents" if "single document" in str(error.context) else _problem_text(error)
        raise UnreadableSource(problem, "mend the YAML", None if mark is None else _place(mark)) from None
    except yaml.YAMLError as error:
        raise UnreadableSource(f"is no YAML: {str(error).splitlines()[0][:200]}", "use printable text") from None
    except (ValueError, OverflowError):  # PyYAML does not check the size of escapes and version numbers
        place = None if loader is None else _place(loader.get_mark())
        raise UnreadableSource(
            "has an escape that is no character, or a version that is none", "mend it", place
        ) from None
    finally:
        if loader is not None:
            loader.dispose()
    if node is None:
        raise UnreadableSource("is empty", "write name and steps", (1, 1))
    reading = _Reading()
    return SourceDocument(reading.value(node, ()), reading.spots, tuple(reading.repeated))


def _plain(text: str, place: TextPosition) -> Any:
    if text.lower() in _WORDS and text in {text.lower(), text.upper(), text.capitalize()}:
        return _WORDS[text.lower()]
    whole = _WHOLE.match(text) is not None
    if not whole and _NUMBER.match(text) is None:
        return text
    if len(text) > DIGITS_MAX or not math.isfinite(float(text)):
        raise UnreadableSource(f"{text[:40]} is too large a number", "write a smaller one, or a text in quotes", place)
    return int(text) if whole else float(text)


def _problem_text(error: yaml.MarkedYAMLError) -> str:
    parts = [part for part in (error.context, error.problem) if part]
    return f"is no YAML: {', '.join(parts)}"[:200]


def _place(mark: yaml.Mark) -> TextPosition:
    return mark.line + 1, mark.column + 1
