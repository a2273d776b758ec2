"""Records what the claimants of the requirements did in a full run of the tests, for `make ledger`.

Each test carries the requirements that it claims, and its claimant (itself, unless a mark names another: a page, or a
check of a kit), through its reports. A run counts as full when all tests were collected, none was chosen, and each ran
to its end on files that did not change meanwhile. Any other run leaves the record as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

import run_results
from run_results import Cases, Record, Tree

PROPERTY = "requires"
CHOOSING = ("markexpr", "keyword", "deselect", "ignore", "ignore_glob", "lf", "stepwise", "collectonly")


def claims_of(item: pytest.Item) -> dict[str, list[str]]:
    """The requirements that a test claims, by claimant."""
    claims: dict[str, list[str]] = {}
    for mark in item.iter_markers("requires"):
        claimant = mark.kwargs.get("by") or item.nodeid.partition("[")[0]
        claims.setdefault(claimant, []).extend(mark.args)
    return claims


def reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


class Recorder:
    """The reports of one run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tree = run_results.tree(config.rootpath)
        self._expected: set[str] = set()
        self._finished: set[str] = set()
        self._outcomes: dict[str, tuple[str, str]] = {}  # by test: the outcome, and the reason of a skip
        self._claims: dict[str, dict[str, list[str]]] = {}
        self._uncollected = False
        self._said = ""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._uncollected = self._uncollected or report.failed

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._expected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Iterable[str]) -> None:
        self._expected.update(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == PROPERTY and isinstance(value, dict):
                self._claims[report.nodeid] = value
        before = self._outcomes.get(report.nodeid, ("", ""))
        if report.failed:
            self._outcomes[report.nodeid] = ("failed", "")
        elif report.skipped:
            self._outcomes[report.nodeid] = ("skipped", reason(report))
        elif report.when == "call" and not before[0]:
            self._outcomes[report.nodeid] = ("passed", "")
        if report.when == "teardown":
            self._finished.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        tree = self._tree
        missing = self._missing()
        if tree is None or missing:
            self._said = f"not recorded for `make ledger`: {missing or 'the files are in no clone'}"
            return
        run_results.write(self._config.rootpath, self._record(tree))
        self._said = f"recorded for `make ledger`: a full run of {tree.shown}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.line(self._said)

    def _missing(self) -> str:
        """Why this was not a full run; empty if it was one."""
        config = self._config
        if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
            return "some folders or files were chosen"
        if any(getattr(config.option, each, None) for each in CHOOSING):
            return "some tests were chosen"
        if self._uncollected or not self._expected:
            return "not all tests were collected"
        if self._expected != self._finished:
            return f"{len(self._expected ^ self._finished)} tests did not run to their end"
        return "" if run_results.tree(config.rootpath) == self._tree else "files changed during the run"

    def _record(self, tree: Tree) -> Record:
        record = Record(tree, Cases(), {})
        for test, (outcome, why) in self._outcomes.items():
            counted = [record.totals]
            for claimant, ids in self._claims.get(test, {}).items():
                counted += [record.claims.setdefault(each, {}).setdefault(claimant, Cases()) for each in set(ids)]
            for cases in counted:
                cases.passed += outcome == "passed"
                cases.failed += outcome == "failed"
                if outcome == "skipped":
                    cases.skipped[why] = cases.skipped.get(why, 0) + 1
        return record


def pytest_configure(config: pytest.Config) -> None:
    """Record on the process that hears of all tests, and not on its workers."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config), "claim-recorder")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The reports of a test carry its claims, also from a worker to the process that starts it."""
    for item in items:
        if claims := claims_of(item):
            item.user_properties.append((PROPERTY, claims))
