"""Retired words do not come back: comments, docstrings, messages and docs use the terms of docs/glossary.md.

Each folder has a ceiling, which only shrinks. A folder that is not listed has a ceiling of zero.
"""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support.source_tree import ROOT

RETIRED = re.compile(
    r"\b(somebody|nobody|anybody|whoever|everybody|anew|given back|in hand|by itself|at once|(?:stands? )?in line)\b",
    re.IGNORECASE,
)
UNIX_USER = re.compile(r"`nobody`|^ *\"nobody\"$")
SUFFIXES = {".py", ".md", ".sql", ".lua", ".js", ".html", ".css", ".toml", ".yml", ".yaml", ".conf", ".c", ".pml", ""}
MARKERS = re.compile(r"\n[ \t]*(?:#+:?|--|//|\*|>)?[ \t]*")  # the beginning of a line of a comment or of a quotation
SHOWN_MAX = 20

# Files that use retired words on purpose, and why.
EXCEPTIONS = {
    "tests/repository/test_vocabulary.py": "names them",
    "docs/glossary.md": "names them, beside the terms to use",
    "docs/style.md": "names them, beside the terms to use",
    "tools/requirements.toml": "the agreed texts of the requirements",
    "docs/requirements.md": "shows the agreed texts of the requirements",
}

# The number of retired words in each folder. It only shrinks: lower it when a folder uses fewer.
CEILINGS: dict[str, int] = {
    "docs": 17,
    "src/holdfast/guards": 1,
    "src/holdfast/plane": 3,
    "tests/integration": 3,
    "tests/unit": 3,
    "tools": 11,
}


def folder_of(path: str) -> str:
    """`src/holdfast/plane` for code, `tests/unit` for tests, else the folder at the root; "." for files at the root."""
    parts = path.split("/")[:-1]
    return "/".join(parts[: {"src": 3, "tests": 2}.get(parts[0] if parts else "", 1)]) or "."


def texts(path: Path) -> Iterator[str]:
    """Comments and literals of Python code; the whole text of other files."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield text
        return
    if not RETIRED.search(MARKERS.sub(" ", text)):
        return
    comments: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.append(token.string)
        elif token.type == tokenize.STRING or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            yield token.string
        elif token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT) and comments:
            yield "\n".join(comments)
            comments.clear()
    yield "\n".join(comments)


def found_in(path: Path) -> list[str]:
    """The retired words of a file, also where a line break is in the middle of one."""
    plain = (UNIX_USER.sub("", MARKERS.sub(" ", f"\n{text}")) for text in texts(path))
    return [match[0] for text in plain for match in RETIRED.finditer(text)]


def tracked() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("no list of tracked files here: not a clone")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for path in listed.split("\0") if path and not path.startswith("tests/fuzzing/corpus/")]


@cache
def found() -> dict[str, Counter[str]]:
    """For each folder how many retired words each of its files has."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for path in tracked():
        if path in EXCEPTIONS or Path(path).suffix not in SUFFIXES or not (ROOT / path).is_file():
            continue
        if words := found_in(ROOT / path):
            counts[folder_of(path)][path] = len(words)
    return counts


def test_no_folder_has_more_retired_words_than_before() -> None:
    wrong = []
    for folder, counts in sorted(found().items()):
        number, ceiling = counts.total(), CEILINGS.get(folder, 0)
        if number > ceiling:
            most = ", ".join(f"{path} {count}" for path, count in counts.most_common(SHOWN_MAX))
            wrong.append(f"{folder}: {number} retired words, at most {ceiling} are allowed. Most are in {most}")
        elif number < ceiling:
            print(f"{folder}: {number} retired words; lower its ceiling of {ceiling}")
    assert not wrong, "use the terms of docs/glossary.md:\n" + "\n".join(wrong)


def test_every_ceiling_and_every_exception_belongs_to_something() -> None:
    folders = {folder_of(path) for path in tracked()}
    assert set(CEILINGS) <= folders
    assert all((ROOT / path).is_file() for path in EXCEPTIONS)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.py", "for word in line:\n    nobody = 1\n", []),
        ("a.py", '"""What somebody\nelse has in\n    hand."""\n', ["somebody", "in hand"]),
        ("a.py", "x = 1  # both at\n# once, and f-strings\ny = f'{x} anew'\n", ["at once", "anew"]),
        ("a.md", "> It stands in\n> line, by itself\n", ["stands in line", "by itself"]),
        ("a.sql", "-- Whoever\n-- waits\n", ["Whoever"]),
        ("a.py", 'pwd.getpwnam("nobody")  # root runs it as `nobody`\n', []),
    ],
)
def test_words_are_found_in_texts_and_not_in_code(name: str, text: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert found_in(tmp_path / name) == words
