"""Where things are: the files that the repository's checks of itself read."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "src" / "holdfast"
CODE = ("src", "tests", "tools", "benchmarks", "examples")
HIDDEN = {".ci", ".gitattributes", ".github", ".gitignore", ".pre-commit-config.yaml"}  # hidden, and written by people
MADE = {".git", ".venv", "__pycache__", "build", "dist", "results", "node_modules"}


def modules() -> list[Path]:
    """Every Python module of the package."""
    return sorted(PACKAGE.glob("**/*.py"))


def python_files() -> list[Path]:
    """Every Python file of the repository."""
    return sorted(path for room in CODE for path in (ROOT / room).glob("**/*.py") if not MADE & set(path.parts))


def text_files() -> Iterator[Path]:
    """Every file of the repository that people read, hidden and made ones aside."""
    suffixes = {".py", ".lua", ".sql", ".md", ".toml", ".txt", ".json", ".yml", ".yaml", ".cfg", ""}
    for top in sorted(ROOT.iterdir()):
        if top.name in MADE or (top.name.startswith(".") and top.name not in HIDDEN):
            continue
        paths = sorted(top.glob("**/*")) if top.is_dir() else [top]
        for path in paths:
            if path.is_file() and path.suffix in suffixes and not MADE & set(path.relative_to(ROOT).parts):
                yield path


def shown(path: Path) -> str:
    """The path as people write it."""
    return path.relative_to(ROOT).as_posix()


def naming(paths: Iterable[Path], word: str) -> list[Path]:
    """Those of the files in which a word stands at all: only these are worth parsing."""
    return [path for path in paths if word in path.read_text(encoding="utf-8")]


def tree(path: Path) -> ast.Module:
    """A file, parsed. It is all live objects, which a garbage collection would look through again and again."""
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"), shown(path))
    finally:
        gc.enable()
