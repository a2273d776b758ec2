"""The requirement ledger is complete, readable, up to date, and never shrinks unnoticed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

import ledger
import pages
from marks import BadMarker


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository of its own, with two requirements, for the ledger to read."""
    for room in ("tests", "docs", "tools"):
        (tmp_path / room).mkdir()
    (tmp_path / "README.md").write_text("# Nothing\n")
    (tmp_path / "tools" / "requirements.toml").write_text(
        'R1 = { kind = "limit", holds = "one" }\nR2 = { kind = "current", holds = "two" }\n'
    )
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(ledger, "ROOT", tmp_path)
    monkeypatch.setattr(ledger, "PAGE", tmp_path / "docs" / "requirements.md")
    return tmp_path


def write_tests(repository: Path, text: str) -> None:
    (repository / "tests" / "test_it.py").write_text(text)


def proofs(names: Iterable[str]) -> dict[str, list[str]]:
    return {name: [f"tests/test_it.py::test_{name.lower()}"] for name in names}


def test_every_requirement_has_an_id_a_kind_and_a_short_phrase() -> None:
    rows = ledger.requirements()
    assert list(rows) == [f"R{n}" for n in range(1, 169)]
    assert {row.kind for row in rows.values()} == {"current", "next", "gap", "runbook", "limit"}
    assert [row.id for row in rows.values() if not 2 <= len(row.holds.split()) <= 12] == []


def test_every_marker_names_a_known_requirement_in_plain_text() -> None:
    assert set(ledger.collect()) == set(ledger.requirements())


def test_no_requirement_that_was_covered_has_lost_its_proof() -> None:
    assert ledger.lost(ledger.collect()) == []


def test_the_page_is_up_to_date() -> None:
    assert ledger.PAGE.read_text(encoding="utf-8") == ledger.render(ledger.collect()), "run `make docs`"


def test_markers_on_functions_classes_modules_and_parameters_count(repository: Path) -> None:
    write_tests(
        repository,
        "import pytest\n"
        "pytestmark = [pytest.mark.requires('R2')]\n"
        "@pytest.mark.requires('R1')\n"
        "def test_a(): ...\n"
        "class TestB:\n"
        "    @pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.requires('R1'))])\n"
        "    async def test_c(self, x): ...\n",
    )
    assert ledger.collect() == {
        "R1": ["tests/test_it.py::test_a", "tests/test_it.py::TestB::test_c"],
        "R2": ["tests/test_it.py::test_a", "tests/test_it.py::TestB::test_c"],
    }


@pytest.mark.parametrize("marker", ["pytest.mark.skip", "pytest.mark.skip('why')", "pytest.mark.xfail(reason='bug')"])
def test_a_test_that_never_passes_proves_nothing(repository: Path, marker: str) -> None:
    write_tests(repository, f"import pytest\n@{marker}\n@pytest.mark.requires('R1')\ndef test_a(): ...\n")
    assert ledger.collect() == {"R1": [], "R2": []}


@pytest.mark.parametrize("argument", ["'R3'", "*IDS", "NAME", "f'R{1}'"])
def test_unknown_or_computed_ids_are_refused(repository: Path, argument: str) -> None:
    write_tests(repository, f"import pytest\n@pytest.mark.requires({argument})\ndef test_a(): ...\n")
    with pytest.raises(BadMarker, match="test_a"):
        ledger.collect()


def test_an_executed_block_of_a_page_is_a_proof(repository: Path) -> None:
    (repository / "docs" / "page.md").write_text(
        "## A Section!\n<!-- requires: R1, R2 -->\n```python\nassert True\n```\n"
    )
    assert ledger.collect() == {"R1": ["docs/page.md#a-section"], "R2": ["docs/page.md#a-section"]}


def test_a_block_that_is_never_executed_cannot_be_a_proof(repository: Path) -> None:
    (repository / "docs" / "page.md").write_text(
        "<!-- requires: R1 -->\n<!-- no-run: needs a server -->\n```python\nassert True\n```\n"
    )
    with pytest.raises(BadMarker, match="never executed"):
        ledger.collect()


def test_a_check_of_the_conformance_kit_is_a_proof_if_the_tests_run_the_kit(repository: Path) -> None:
    kit = repository / "src" / "holdfast" / "testing"
    kit.mkdir(parents=True)
    (kit / "checks.py").write_text("@check(Claim.FENCED, proves=('R1',))\nasync def it_holds(world): ...\n")
    assert ledger.collect() == {"R1": [], "R2": []}
    write_tests(repository, "from holdfast.testing.conformance import CHECKS\ndef test_all(check): ...\n")
    assert ledger.collect() == {"R1": ["tests/test_it.py::test_all[it_holds]"], "R2": []}


def test_the_page_refuses_to_lose_a_proof_unless_told_to(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger.PAGE.write_text(ledger.render(proofs(["R1", "R2"])))
    write_tests(repository, "import pytest\n@pytest.mark.requires('R2')\ndef test_r2(): ...\n")
    assert ledger.lost(ledger.collect()) == ["R1"]
    assert ledger.main(["--write"]) == 1
    assert "R1" in capsys.readouterr().err
    assert ledger.covered_before() == {"R1", "R2"}
    assert ledger.main(["--write", "--give-up", "R1"]) == 0
    assert ledger.covered_before() == {"R2"}


def test_the_ledger_prints_one_line_for_each_requirement(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tests(
        repository,
        "import pytest\n"
        "@pytest.mark.requires('R2')\ndef test_a(): ...\n"
        "@pytest.mark.requires('R2')\ndef test_b(): ...\n",
    )
    assert ledger.main([]) == 0
    assert capsys.readouterr().out.splitlines() == ["R1 open", "R2 covered tests/test_it.py::test_a (+1)"]
