"""The results of the last full run of the tests, for the requirements: written by the tests, read by `make ledger`.

Promises: a record belongs to one state of the files, the commit and what differs from it; `of_this_tree` returns None
for every other state. Does not promise: results of a run of some of the tests, which are never recorded.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Tree:
    """A state of the files of a clone."""

    commit: str
    changes: str = ""  # a digest of the differences from the commit; empty for a clean tree

    @property
    def shown(self) -> str:
        """The commit, and whether the tree is clean, for people."""
        return f"{self.commit[:10]} ({'with changes' if self.changes else 'clean tree'})"


@dataclass(slots=True)
class Cases:
    """The outcomes of the cases of one claimant."""

    passed: int = 0
    failed: int = 0
    skipped: dict[str, int] = field(default_factory=dict)  # by reason


@dataclass(slots=True)
class Record:
    """A full run of the tests."""

    tree: Tree
    totals: Cases
    claims: dict[str, dict[str, Cases]]  # by requirement and claimant


def path(root: Path) -> Path:
    """The file of the record; it is not part of the repository."""
    return root / "build" / "requirements.json"


def tree(root: Path) -> Tree | None:
    """The state of the files now. None where there is no clone to ask."""
    commit = _git(root, "rev-parse", "HEAD")
    differences = _git(root, "diff", "HEAD", "--binary", "--no-ext-diff")
    added = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    if commit is None or differences is None or added is None:
        return None
    digest = hashlib.sha256(differences)
    names = sorted(name for name in added.split(b"\0") if name)
    for name in names:
        digest.update(b"\0" + name + b"\0" + _content(root / os.fsdecode(name)))
    return Tree(commit.decode().strip(), digest.hexdigest() if differences or names else "")


def _content(path: Path) -> bytes:
    """The content of an untracked file, or the target of a link. A folder is a nested clone: its name counts."""
    if path.is_symlink():
        return os.fsencode(path.readlink())
    return path.read_bytes() if path.is_file() else b""


def _git(root: Path, *command: str) -> bytes | None:
    try:
        done = subprocess.run(["git", *command], cwd=root, capture_output=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def write(root: Path, record: Record) -> None:
    """Replace the record in one step."""
    file = path(root)
    file.parent.mkdir(exist_ok=True)
    draft = file.with_suffix(".new")
    draft.write_text(json.dumps(asdict(record), indent=1), encoding="utf-8")
    draft.replace(file)


def read(root: Path) -> Record | None:
    """The last full run, whatever state of the files it was of."""
    try:
        text = path(root).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    found: dict[str, Any] = json.loads(text)
    claims = {
        requirement: {claimant: Cases(**cases) for claimant, cases in claimants.items()}
        for requirement, claimants in found["claims"].items()
    }
    return Record(Tree(**found["tree"]), Cases(**found["totals"]), claims)


def of_this_tree(root: Path) -> tuple[Record | None, str]:
    """The last full run if it was of these files, and a sentence about it."""
    record, now = read(root), tree(root)
    if record is None:
        return None, "No full run of the tests is recorded here: `make test` records one."
    if now is None:
        return None, "The files are in no clone, so no run can be said to be of this commit."
    if record.tree != now:
        return None, f"The last full run was of {record.tree.shown}, and this is {now.shown}: `make test` records it."
    totals = record.totals
    counts = f"{totals.passed:,} passed, {totals.failed:,} failed, {sum(totals.skipped.values()):,} skipped"
    return record, f"The last full run was of {now.shown}: {counts}."
