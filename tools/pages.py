"""The fenced code blocks of the documentation, and what the comments in front of them say about them.

A block may be preceded directly by HTML comments, one per line:

    <!-- requires: R44 R49 -->   the requirements that this block proves when it is executed
    <!-- no-run: reason -->      a Python block that is only compiled, and why
    <!-- run -->                 a console block whose `$ holdfast …` lines are executed and compared
    <!-- file: app.py -->        a Python block that the page's console blocks find under this name

Python blocks are executed unless they say otherwise; console blocks are not unless they say so.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from marks import is_empty

ROOT = Path(__file__).resolve().parent.parent

_COMMENT = re.compile(r"<!--\s*(?P<name>requires|no-run|run|file)(?::\s*(?P<value>.*?))?\s*-->")
_FENCE = re.compile(r"```(?P<language>[a-z]*)")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of one page."""

    page: Path
    section: str  # the anchor of the heading above it; empty before the first one
    line: int  # of the first line inside the fence, counted from 1
    language: str
    text: str
    requires: tuple[str, ...]
    no_run: str | None
    run: bool
    file: str | None = None

    @property
    def executed(self) -> bool:
        """Whether a test executes the block (and so whether it can prove anything)."""
        return (self.language == "python" and self.no_run is None) or (self.language == "console" and self.run)

    @property
    def where(self) -> str:
        """Page and line, as people and editors write it."""
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"

    @property
    def claimant(self) -> str:
        """Page and section: the name under which the block claims requirements."""
        return f"{self.page.relative_to(ROOT).as_posix()}#{self.section}"

    @property
    def empty(self) -> bool:
        """Whether executing it does nothing."""
        if self.language == "console":
            return not re.search(r"^\$ \S", self.text, re.MULTILINE)
        return is_empty(ast.parse(self.text).body)


def pages() -> list[Path]:
    """Every page that is written for readers: those at the top and docs/, in a stable order."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    notes: dict[str, str] = {}
    section = ""
    index = 0
    while index < len(lines):
        line = lines[index].strip()
        index += 1
        if found := _COMMENT.fullmatch(line):
            notes[found["name"]] = found["value"] or ""
        elif fence := _FENCE.match(line):
            start = index
            while index < len(lines) and lines[index].strip() != "```":
                index += 1
            yield _block(page, section, start, fence["language"], lines[start:index], notes)
            notes = {}
            index += 1
        else:
            notes = {}
            section = anchor(line.lstrip("# ")) if line.startswith("#") else section


def anchor(heading: str) -> str:
    """The name under which a heading can be linked to."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """The names under which the headings of a page can be linked to."""
    return {anchor(found) for found in re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)}


def _block(page: Path, section: str, start: int, language: str, lines: list[str], notes: dict[str, str]) -> Block:
    return Block(
        page=page,
        section=section,
        line=start + 1,
        language=language,
        text="\n".join(lines) + "\n",
        requires=tuple(notes.get("requires", "").replace(",", " ").split()),
        no_run=notes.get("no-run"),
        run="run" in notes,
        file=notes.get("file"),
    )
