"""The examples run, do what their pages say, and stand on them word for word."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import re
from pathlib import Path

import pytest

import example_pages
from pages import ROOT, blocks

PAGES = example_pages.pages()


def printed(page: Path) -> tuple[str, list[str]]:
    """The example of a page, and what the page says it prints."""
    first, *lines = next(block.text for block in blocks(page) if block.language == "console").splitlines()
    return first.removeprefix("$ python -m examples."), lines


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_an_example_does_what_its_page_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, wanted = printed(page)
    monkeypatch.syspath_prepend(str(ROOT))
    example = importlib.import_module(f"examples.{name}")
    if hasattr(example, "PLACE"):
        monkeypatch.setenv(example.PLACE, str(tmp_path))  # it sets this itself; afterwards it is as it was
    shown = example.show(tmp_path)
    lines = asyncio.run(shown) if inspect.iscoroutine(shown) else shown
    assert len(lines) == len(wanted)
    for line, pattern in zip(lines, wanted, strict=True):
        assert re.fullmatch(".*".join(map(re.escape, pattern.split("…"))), line), (line, pattern)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_on_a_page_is_the_code_that_runs(page: Path) -> None:
    text = example_pages.render(page)
    assert text == page.read_text(encoding="utf-8"), "run `python tools/example_pages.py --write`"
    code = [block for block in blocks(page) if block.language in ("python", "yaml")]
    assert len(code) == len(example_pages.shown(page)), "code that is of no file"


def test_every_example_has_a_page() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").glob("*.*")}
    assert {file for page in PAGES for file in example_pages.shown(page)} == files
