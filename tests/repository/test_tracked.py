"""What git keeps is what people wrote: text of the kinds that this project is made of, its pictures, and the inputs of
the fuzzers. A wheel, an archive, something compiled or a database that was added by mistake is found here.
"""

from __future__ import annotations

import shutil
from pathlib import PurePosixPath

import pytest

from support.source_tree import ROOT
from track_replay import git

WRITTEN = {
    *(".py", ".sql", ".lua", ".md", ".toml", ".txt", ".yaml", ".yml", ".json", ".cfg", ".conf", ".typed", ".pml", ".c"),
    *(".js", ".css", ".html", ".svg"),
}
NAMED = {".ci/run", ".gitattributes", ".gitignore", "LICENSE", "Makefile"}
PICTURES, PNG = "docs/", b"\x89PNG\r\n\x1a\n"
STORED, GZIP = "tests/e2e/upgrade/stored/", b"\x1f\x8b"  # states that an older version wrote
INPUTS = "tests/fuzzing/corpus/"  # of the fuzzers, which may be anything, and are small
BYTES_MAX = 1_000_000
INPUT_BYTES_MAX = 200_000
FILES = {"100644", "100755"}


def foreign(name: str, content: bytes) -> str | None:
    """Why a file does not belong here; None: it does."""
    kind = PurePosixPath(name).suffix
    if name.startswith(INPUTS) and kind == ".bin":
        return None if len(content) <= INPUT_BYTES_MAX else f"has {len(content)} bytes"
    if len(content) > BYTES_MAX:
        return f"has {len(content)} bytes"
    if kind == ".png":
        return None if name.startswith(PICTURES) and content.startswith(PNG) else "is no picture of the documentation"
    if name.startswith(STORED) and kind == ".gz":
        return None if content.startswith(GZIP) else "is no compressed file"
    if kind not in WRITTEN and name not in NAMED:
        return "is of no kind that this project is made of"
    try:
        return "has a zero character in it" if "\0" in content.decode() else None
    except UnicodeDecodeError:
        return "is not text in UTF-8"


def test_nothing_foreign_is_tracked() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no history here: not a clone")
    wrong = []
    for entry in filter(None, git("ls-files", "--stage", "-z").decode().split("\0")):
        about, _, name = entry.partition("\t")
        if about.split()[0] not in FILES:
            wrong.append(f"{name} is a link, or another repository")
        elif (path := ROOT / name).is_file() and (why := foreign(name, path.read_bytes())) is not None:
            wrong.append(f"{name} {why}")
    assert not wrong, "\n".join(["remove it (git rm), or say here what it is for", *wrong])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("py_spy-0.4.3-py2.py3-none-any.whl", b"PK\x03\x04"),
        ("docs/pictures.zip", b"PK\x03\x04"),
        ("src/holdfast/fast.so", b"\x7fELF"),
        ("src/holdfast/__pycache__/errors.cpython-311.pyc", b"\xa7\r\r\n"),
        ("plane.db", b"SQLite format 3\0"),
        ("tests/fuzzing/corpus/api/plane.db", b"SQLite format 3\0"),
        ("tests/fuzzing/corpus/api/large.bin", b"x" * (INPUT_BYTES_MAX + 1)),
        ("src/holdfast/errors.py", b"SQLite format 3\0"),
        ("docs/latin.md", "größer".encode("latin-1")),
        ("docs/dump.json", b"x" * (BYTES_MAX + 1)),
        ("docs/wheel.png", b"PK\x03\x04"),
        ("src/holdfast/web/static/logo.png", PNG),
        ("core", b"\x7fELF"),
        ("notes", b"plain text of an unknown kind"),
    ],
)
def test_what_does_not_belong_is_found_by_name_and_by_content(name: str, content: bytes) -> None:
    assert foreign(name, content)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("src/holdfast/errors.py", '"""Größer."""\n'.encode()),
        ("src/holdfast/py.typed", b""),
        ("docs/status-page.png", PNG),
        ("tests/fuzzing/corpus/api/bom.bin", b"\xff\xfe\0"),
        (".ci/run", b"#!/bin/sh\n"),
    ],
)
def test_what_belongs_is_left_alone(name: str, content: bytes) -> None:
    assert foreign(name, content) is None
