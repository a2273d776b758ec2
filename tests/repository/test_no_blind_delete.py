"""No lock is ever deleted by its key alone: each statement that removes one compares the owner, or says why it may not.

The bug that this keeps out is the oldest one of its kind: a holder that overran its lease frees its successor's lock.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.source_tree import PACKAGE, modules, shown

SCRIPTS = sorted(PACKAGE.glob("**/*.lua"))
STATEMENTS = sorted(PACKAGE.glob("**/*.sql"))

# What may remove a lock without comparing the owner's token, what it must do instead, and why.
WITHOUT_COMPARING: dict[str, tuple[str, str]] = {
    "force_release.lua": ("XADD", "an operator breaks a lock; the act is written down in the same step"),
    "drop.sql": ("Only after the same transaction", "the row was proven dead, or an operator breaks it"),
    "sweep_leases.sql": ("expires_ns <= :now_ns", "only what has run out"),
}

REMOVES_KEY = re.compile(r"redis\.p?call\('(?:DEL|UNLINK|GETDEL)', KEYS\[1\]")
REMOVES_ROW = re.compile(r"DELETE FROM holdfast_lease\b")
SENT_FROM_PYTHON = re.compile(
    r"""["'](?:DEL|UNLINK|GETDEL)["']|DELETE FROM holdfast_lease|"""
    r"""\b(?:client|connection|redis|pipe)\.(?:delete|unlink)\("""
)


def removers() -> list[Path]:
    scripts = [path for path in SCRIPTS if REMOVES_KEY.search(path.read_text(encoding="utf-8"))]
    return scripts + [path for path in STATEMENTS if REMOVES_ROW.search(path.read_text(encoding="utf-8"))]


@pytest.mark.requires("R26")
@pytest.mark.parametrize("path", removers(), ids=shown)
def test_what_removes_a_lock_compares_its_owner_first(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.name in WITHOUT_COMPARING:
        instead, reason = WITHOUT_COMPARING[path.name]
        assert instead in text, reason
    elif path.suffix == ".lua":
        before = text[: REMOVES_KEY.search(text).start()]  # type: ignore[union-attr]  # `removers` found it there
        assert "~= ARGV[1]" in before
    else:
        assert re.search(r"DELETE FROM holdfast_lease WHERE key = :key AND token = :token", text)


@pytest.mark.requires("R26")
def test_locks_are_removed_by_scripts_and_statements_alone() -> None:
    wrong = [shown(path) for path in modules() if SENT_FROM_PYTHON.search(path.read_text(encoding="utf-8"))]
    assert wrong == []


def test_the_search_finds_what_it_is_for() -> None:
    assert {path.name for path in removers()} >= {"release.lua", "release.sql", *WITHOUT_COMPARING}
