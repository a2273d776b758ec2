"""The public names: all documented, in both colors, and the reference page says what the source says."""

from __future__ import annotations

import importlib
import re

import pytest

import reference
from support.source_tree import ROOT

MODULES = ["holdfast", "holdfast.aio"]

# The names that users' scripts rely on.
FIXED = {"connect", "Locks", "Lock", "Lease"}
ERRORS = {
    *(
        "AcquireTimeout",
        "BackendError",
        "BadInput",
        "FencedOut",
        "HoldfastError",
        "LeaseLost",
        "LockBusy",
        "Misconfigured",
    ),
    *("NotOwner", "PolicyDenied", "RetryLater", "Timeout", "Unavailable"),
}


def test_the_reference_page_is_up_to_date() -> None:
    assert reference.PAGE.read_text(encoding="utf-8") == reference.render(), "run `make docs`"
    assert reference.GUARDS_PAGE.read_text(encoding="utf-8") == reference.render_guards(), "run `make docs`"
    assert reference.PLANE_PAGE.read_text(encoding="utf-8") == reference.render_plane(), "run `make docs`"


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_stands_in_the_reference(module: str) -> None:
    page = reference.PAGE.read_text(encoding="utf-8")
    names = reference.public_names(importlib.import_module(module))
    assert names
    assert [
        name for name in names if f"### holdfast.{name}\n" not in page and f"### {module}.{name}\n" not in page
    ] == []


@pytest.mark.parametrize("module", MODULES)
def test_the_fixed_names_are_there_in_both_colours(module: str) -> None:
    assert set(importlib.import_module(module).__all__) >= FIXED


def test_every_error_can_be_caught_by_its_name() -> None:
    assert set(importlib.import_module("holdfast").__all__) >= ERRORS


def test_examples_and_docs_import_nothing_below_the_public_package_of_the_plane() -> None:
    pages = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", *ROOT.glob("examples/*.py")]
    below = re.compile(r"^\s*(?:from|import) (holdfast\.plane\.\w+)", re.MULTILINE)
    found = {(page.name, name) for page in pages for name in below.findall(page.read_text(encoding="utf-8"))}
    assert len(pages) > 50
    assert found == set()


@pytest.mark.parametrize("module", [*MODULES, "holdfast.plane"])
def test_public_names_exist(module: str) -> None:
    loaded = importlib.import_module(module)
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []
