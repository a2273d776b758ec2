"""The requirements: in full, never fewer unnoticed, on a page that is up to date; and empty claims are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

import ledger
import pages
import run_results
from marks import BadMarker
from run_results import Cases, Record, Tree
from support import source_tree as source
from support.scratch_repository import run_pytest


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository of its own, with two requirements, for the ledger to read."""
    for room in ("tests", "docs", "tools"):
        (tmp_path / room).mkdir()
    (tmp_path / "README.md").write_text("# Nothing\n")
    (tmp_path / "tools" / "requirements.toml").write_text(
        '[R1]\nkind = "limit"\ntext = "One holds."\n[R2]\nkind = "current"\ntext = "Two | three."\n'
    )
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(ledger, "ROOT", tmp_path)
    monkeypatch.setattr(ledger, "PAGE", tmp_path / "docs" / "requirements.md")
    return tmp_path


def write_tests(repository: Path, text: str) -> None:
    (repository / "tests" / "test_it.py").write_text(text)


IT = "tests/test_it.py"
HOLDS = "    assert callable(pytest.skip)\n"
NONE: dict[str, list[str]] = {"R1": [], "R2": []}


def proofs(names: Iterable[str]) -> dict[str, list[str]]:
    return {name: [f"tests/test_it.py::test_{name.lower()}"] for name in names}


def test_every_requirement_has_an_id_a_kind_and_its_full_text() -> None:
    rows = ledger.requirements()
    assert list(rows) == [f"R{n}" for n in range(169)]
    kinds = Counter(row.kind for row in rows.values())
    assert kinds == {"current": 59, "limit": 36, "runbook": 29, "next": 24, "gap": 21}
    assert [row.id for row in rows.values() if not row.text.endswith((".", ")"))] == []


def test_every_marker_names_a_known_requirement_in_plain_text() -> None:
    assert set(ledger.collect()) == set(ledger.requirements())


def test_a_requirement_without_a_claimant_says_what_is_missing() -> None:
    found, known = ledger.collect(), ledger.requirements()
    assert [each for each, claimants in found.items() if not claimants and not known[each].open] == []


def test_every_current_and_next_requirement_is_attacked_by_a_mutant() -> None:
    assert ledger.unattacked(ledger.mutants()) == []


def test_no_requirement_that_was_covered_has_lost_its_proof() -> None:
    assert ledger.lost(ledger.collect()) == []


def test_the_page_is_up_to_date() -> None:
    page = ledger.render(ledger.collect(), ledger.mutants())
    assert ledger.PAGE.read_text(encoding="utf-8") == page, "run `make docs`"


def test_markers_on_functions_classes_and_parameters_count(repository: Path) -> None:
    write_tests(
        repository,
        "import pytest\n"
        f"@pytest.mark.requires('R1')\ndef test_a():\n{HOLDS}"
        "@pytest.mark.requires('R2')\n"
        "class TestB:\n"
        "    @pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.requires('R1'))])\n"
        "    async def test_c(self, x): assert x\n",
    )
    assert ledger.collect() == {"R1": [f"{IT}::test_a", f"{IT}::TestB::test_c"], "R2": [f"{IT}::TestB::test_c"]}


@pytest.mark.parametrize("mark", ["pytest.mark.requires('R2')", "[pytest.mark.slow, pytest.mark.requires('R2')]"])
def test_a_mark_of_a_whole_module_is_refused(repository: Path, mark: str) -> None:
    write_tests(repository, f"import pytest\npytestmark = {mark}\ndef test_a():\n{HOLDS}")
    with pytest.raises(BadMarker, match=f"{IT} marks the whole module with R2"):
        ledger.collect()


@pytest.mark.parametrize(
    "body",
    ["...", "pass", "return", "'''What holds.'''\n    pass", "1", "x = 1", "assert True", "assert 1 + 1 == 2, 'so'"],
)
def test_a_test_that_checks_nothing_is_refused(repository: Path, body: str) -> None:
    write_tests(repository, f"import pytest\n@pytest.mark.requires('R1')\ndef test_a():\n    {body}\n")
    with pytest.raises(BadMarker, match="test_a claims to prove R1, and checks nothing"):
        ledger.collect()


@pytest.mark.parametrize("marker", ["pytest.mark.skip('why')", "pytest.mark.xfail(reason='bug')"])
def test_a_test_that_never_passes_proves_nothing(repository: Path, marker: str) -> None:
    write_tests(repository, f"import pytest\n@{marker}\n@pytest.mark.requires('R1')\ndef test_a():\n{HOLDS}")
    assert ledger.collect() == NONE


@pytest.mark.parametrize(
    ("marker", "statement"),
    [
        ("pytest.mark.skip", "assert True"),
        ("pytest.mark.skip()", "assert True"),
        ("pytest.mark.skip('')", "assert True"),
        ("pytest.mark.skipif(True)", "assert True"),
        ("pytest.mark.skipif(True, reason='')", "assert True"),
        ("pytest.mark.xfail", "assert True"),
        ("pytest.mark.xfail(True)", "assert True"),
        ("pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.skip)])", "assert True"),
        ("pytest.mark.slow", "pytest.skip()"),
        ("pytest.mark.slow", "pytest.skip(reason='')"),
        ("pytest.mark.slow", "pytest.xfail()"),
    ],
)
def test_a_skip_without_a_reason_is_refused_anywhere_in_the_tests(
    repository: Path, marker: str, statement: str
) -> None:
    text = f"import pytest\n@{marker}\ndef test_a(x=1):\n    {statement}\n"
    (repository / "tests" / "fixtures_here.py").write_text(text)
    with pytest.raises(BadMarker, match=r"without a reason: tests/fixtures_here\.py:\d"):
        ledger.collect()


@pytest.mark.parametrize(
    ("marker", "statement"),
    [
        ("pytest.mark.skipif(True, reason='no server')", "assert callable(print)"),
        ("pytest.mark.slow", "pytest.skip('no server')"),
        ("pytest.mark.slow", "pytest.skip(reason=f'no {x}')"),
    ],
)
def test_a_skip_with_a_reason_is_left_to_the_run(repository: Path, marker: str, statement: str) -> None:
    write_tests(repository, f"import pytest\n@{marker}\n@pytest.mark.requires('R1')\ndef test_a():\n    {statement}\n")
    assert ledger.collect()["R1"] == [f"{IT}::test_a"]


def test_a_test_for_which_no_case_is_left_is_an_error(repository: Path) -> None:
    """An empty list of servers fails the run, and does not turn a claimant into a silent skip."""
    write_tests(repository, "import pytest\n@pytest.mark.parametrize('x', [])\ndef test_a(x): assert x\n")
    plugins = [option for name in ("pytest_timeout", "pytest_asyncio.plugin") for option in ("-p", name)]
    settings = ("-c", str(source.ROOT / "pyproject.toml"), f"--rootdir={repository}", "--override-ini", "pythonpath=")
    done = run_pytest(repository, *plugins, *settings, "tests")
    assert "Empty parameter set in 'test_a'" in done.stdout
    assert done.returncode == pytest.ExitCode.INTERRUPTED


@pytest.mark.parametrize("argument", ["'R3'", "*IDS", "NAME", "f'R{1}'"])
def test_unknown_or_computed_ids_are_refused(repository: Path, argument: str) -> None:
    write_tests(repository, f"import pytest\n@pytest.mark.requires({argument})\ndef test_a():\n{HOLDS}")
    with pytest.raises(BadMarker, match="test_a"):
        ledger.collect()


def test_an_executed_block_of_a_page_is_a_proof(repository: Path) -> None:
    (repository / "docs" / "page.md").write_text(
        "## A Section!\n<!-- requires: R1, R2 -->\n```python\nassert callable(print)\n```\n"
    )
    assert ledger.collect() == {"R1": ["docs/page.md#a-section"], "R2": ["docs/page.md#a-section"]}


def test_a_block_that_is_never_executed_cannot_be_a_proof(repository: Path) -> None:
    (repository / "docs" / "page.md").write_text(
        "<!-- requires: R1 -->\n<!-- no-run: needs a server -->\n```python\nassert callable(print)\n```\n"
    )
    with pytest.raises(BadMarker, match="never executed"):
        ledger.collect()


NO_BLOCKS = [
    "```python\npass\n```",
    "```python\n...\n```",
    "```python\n# pass\nassert True\n```",
    "<!-- run -->\n```console\n```",
]


@pytest.mark.parametrize("block", NO_BLOCKS)
def test_a_block_that_does_nothing_is_refused(repository: Path, block: str) -> None:
    (repository / "docs" / "page.md").write_text(f"<!-- requires: R1 -->\n{block}\n")
    with pytest.raises(BadMarker, match=r"docs/page.md:\d claims to prove R1, and checks nothing"):
        ledger.collect()


def write_kit(repository: Path, body: str) -> None:
    kit = repository / "src" / "holdfast" / "testing"
    kit.mkdir(parents=True)
    (kit / "checks.py").write_text(f"@check(Claim.FENCED, proves=('R1',))\nasync def it_holds(world):\n    {body}\n")


RUNS_THE_KIT = f"from holdfast.testing.conformance import CHECKS\ndef test_all(check):\n{HOLDS}"


def test_a_check_of_the_conformance_kit_is_a_proof_if_the_tests_run_the_kit(repository: Path) -> None:
    write_kit(repository, "assert await world.held()")
    assert ledger.collect() == NONE
    write_tests(repository, RUNS_THE_KIT)
    assert ledger.collect() == {"R1": [f"{IT}::test_all[it_holds]"], "R2": []}


@pytest.mark.parametrize("body", ["...", "'''It holds.'''", "return None"])
def test_a_check_of_the_kit_that_checks_nothing_is_refused(repository: Path, body: str) -> None:
    write_kit(repository, body)
    write_tests(repository, RUNS_THE_KIT)
    with pytest.raises(BadMarker, match=r"test_all\[it_holds\] claims to prove R1, and checks nothing"):
        ledger.collect()


def test_the_page_refuses_to_lose_a_proof_unless_told_to(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger.PAGE.write_text(ledger.render(proofs(["R1", "R2"]), NONE))
    write_tests(repository, f"import pytest\n@pytest.mark.requires('R2')\ndef test_r2():\n{HOLDS}")
    assert ledger.lost(ledger.collect()) == ["R1"]
    assert ledger.main(["--write"]) == 1
    assert "R1" in capsys.readouterr().err
    assert ledger.covered_before() == {"R1", "R2"}
    assert ledger.main(["--write", "--give-up", "R1"]) == 0
    assert ledger.covered_before() == {"R2"}


def add_open_reason(repository: Path, requirement: str, reason: str) -> None:
    table = repository / "tools" / "requirements.toml"
    table.write_text(table.read_text().replace(f"[{requirement}]\n", f'[{requirement}]\nopen = "{reason}"\n'))


def test_the_page_has_the_full_texts_the_reasons_and_the_mutants(repository: Path) -> None:
    add_open_reason(repository, "R1", "no store does this.")
    write_tests(repository, f"import pytest\n@pytest.mark.requires('R1', 'R2')\ndef test_a():\n{HOLDS}")
    lines = ledger.render(ledger.collect(), {"R1": [], "R2": ["a mutant"]}).splitlines()
    assert "1 of 2 are covered. Open: R1." in lines
    assert "Current and next requirements without a mutant: none." in lines
    assert f"| R1 | limit | One holds.<br>**Open:** no store does this. | open | `{IT}::test_a` |  |" in lines
    assert f"| R2 | current | Two \\| three. | covered | `{IT}::test_a` | 1 |" in lines
    assert "Current and next requirements without a mutant: R2." in ledger.render(ledger.collect(), NONE)


TREE = Tree("c" * 40)


@pytest.mark.parametrize(
    ("cases", "found"),
    [
        ({"a": Cases(passed=2)}, "covered"),  # `b` was not run
        ({"a": Cases(passed=2), "b": Cases(passed=1)}, "proven"),
        ({"a": Cases(passed=2), "b": Cases(skipped={"no server": 1})}, "proven"),
        ({"a": Cases(passed=2), "b": Cases(passed=1, failed=1)}, "covered"),
        ({"a": Cases(skipped={"no server": 1}), "b": Cases(skipped={"no server": 3})}, "covered"),
        ({}, "covered"),
    ],
)
def test_proven_are_those_whose_claimants_all_passed_or_were_skipped_and_at_least_one_passed(
    cases: dict[str, Cases], found: str
) -> None:
    requirement = ledger.Requirement("R1", "limit", "One holds.")
    assert ledger.status(requirement, ["a", "b"], Record(TREE, Cases(), {"R1": cases})) == found
    assert ledger.status(requirement, ["a", "b"], Record(TREE, Cases(), {"R2": cases})) == "covered"
    assert ledger.status(requirement, ["a", "b"], None) == "covered"
    assert ledger.status(requirement, [], Record(TREE, Cases(), {"R1": cases})) == "open"
    missing = ledger.Requirement("R1", "limit", "One holds.", open="no store does this.")
    assert ledger.status(missing, ["a", "b"], Record(TREE, Cases(), {"R1": cases})) == "open"


def test_each_requirement_is_printed_in_full_with_its_status_and_what_was_not_run(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = "".join(f"@pytest.mark.requires('R2')\ndef test_{name}():\n{HOLDS}" for name in "abcde")
    write_tests(repository, f"import pytest\n{marks}")
    add_open_reason(repository, "R1", "no store does this.")
    monkeypatch.setattr(run_results, "tree", lambda root: TREE)

    def printed(*arguments: str) -> list[str]:
        assert ledger.main(list(arguments)) == 0
        return capsys.readouterr().out.splitlines()

    assert printed() == [
        "No full run of the tests is recorded here: `make test` records one.",
        *("", "R1 open (limit)", "    One holds.", "    open: no store does this."),
        *("    claimants: none", "    mutants: 0", "", "R2 covered (current)", "    Two | three."),
        f"    claimants: {IT}::test_a, {IT}::test_b, {IT}::test_c, {IT}::test_d and 1 more",
        *("    mutants: 0", "", "2 requirements: 0 proven, 1 covered, 1 open."),
        "Current and next requirements without a mutant: 1: R2.",
    ]

    ran = {f"{IT}::test_{name}": Cases(passed=1) for name in "abcd"}
    ran[f"{IT}::test_e"] = Cases(skipped={"no server": 2})
    run_results.write(repository, Record(TREE, Cases(passed=4, skipped={"no server": 2}), {"R2": ran}))
    lines = printed()
    assert lines[0] == f"The last full run was of {'c' * 10} (clean tree): 4 passed, 0 failed, 2 skipped."
    assert {"R2 proven (current)", f"    skipped: no server (2): {IT}::test_e"} <= set(lines)
    assert "2 requirements: 1 proven, 0 covered, 1 open." in lines
    passed = [f"    passed: {IT}::test_{name}" for name in "abcd"]
    assert printed("R2")[2:8] == ["R2 proven (current)", "    Two | three.", *passed]

    monkeypatch.setattr(run_results, "tree", lambda root: Tree("c" * 40, "a digest"))
    lines = printed()
    assert f"(clean tree), and this is {'c' * 10} (with changes)" in lines[0]
    assert "R2 covered (current)" in lines


def test_mutants_name_the_requirements_that_they_attack(repository: Path) -> None:
    folder = repository / "tests" / "mutation"
    folder.mkdir()
    planted = '@keep("many", where="x.py", found_by=it, attacks=({}))\ndef a_lock_that_is_none(patch): ...\n'
    (folder / "mutants_leases.py").write_text(planted.format("'R1',"))
    assert ledger.mutants() == {"R1": ["a lock that is none"], "R2": []}
    (folder / "mutants_leases.py").write_text(planted.format("'R3',"))
    with pytest.raises(BadMarker, match="a lock that is none names R3"):
        ledger.mutants()
