"""The files around the code: CI and the hooks call make targets that exist, and the forms for issues are complete."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import yaml

from pages import blocks
from support.source_tree import ROOT, shown

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):.*## \S", MAKEFILE, re.MULTILINE))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/releasing.md", "docs/style.md")]
NAMING = [*PAGES, ROOT / "docs" / "design.md"]

# What a job may run besides make: it prepares the machine.
SET_UP = {
    'git config --global --add safe.directory "$GITHUB_WORKSPACE"',
    "apt-get update && apt-get install --yes --no-install-recommends redis-server",
}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def made(command: str) -> set[str]:
    """The targets of a line of shell that calls make; none if the line does something else."""
    words = shlex.split(re.sub(r"\$\(\(.*\)\)", "0", command), comments=True)
    return {word for word in words[1:] if "=" not in word} if words[:1] == ["make"] else set()


def jobs(workflow: Path) -> Iterator[dict[str, Any]]:
    yield from read(workflow)["jobs"].values()


def commands(job: dict[str, Any]) -> Iterator[str]:
    """Every line that the job runs, those of its matrix included."""
    for step in job["steps"]:
        for line in step.get("run", "").splitlines():
            if line != "${{ matrix.command }}":
                yield line
                continue
            yield from (each["command"] for each in job["strategy"]["matrix"]["include"])


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=shown)
def test_every_job_calls_make_targets_that_exist(workflow: Path) -> None:
    for job in jobs(workflow):
        lines = [line for line in commands(job) if line not in SET_UP]
        assert lines, job["name"]
        for line in lines:
            assert made(line), f"{job['name']}: {line!r} is not a make target"
            assert made(line) <= TARGETS, f"{job['name']}: {line!r}"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=shown)
def test_jobs_can_only_read_and_use_actions_of_one_major_version(workflow: Path) -> None:
    assert read(workflow)["permissions"] == {"contents": "read"}
    for job in jobs(workflow):
        assert "permissions" not in job
        assert 0 < job["timeout-minutes"] <= 180
        for used in (step for step in job["steps"] if "uses" in step):
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", used["uses"]), used["uses"]
            if used["uses"].startswith("actions/checkout@"):
                assert used["with"]["persist-credentials"] is False
    assert "secrets." not in workflow.read_text(encoding="utf-8")


def test_the_suite_runs_on_every_supported_python() -> None:
    (workflow,) = WORKFLOWS
    assert read(workflow)["jobs"]["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]


def test_the_hooks_are_local_and_call_make() -> None:
    repos = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [each["repo"] for each in repos] == ["local"]
    for hook in repos[0]["hooks"]:
        assert made(hook["entry"]), hook["id"]
        assert made(hook["entry"]) <= TARGETS, hook["id"]
        assert (hook["language"], hook["pass_filenames"]) == ("system", False)


@pytest.mark.parametrize("form", FORMS, ids=shown)
def test_a_form_has_a_name_and_questions(form: Path) -> None:
    content = read(form)
    assert content["name"]
    assert content["description"]
    questions = [each for each in content["body"] if each["type"] != "markdown"]
    assert questions
    assert len({each["id"] for each in questions}) == len(questions)
    assert all(each["attributes"]["label"] for each in questions)


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_commands_of_a_page_are_make_targets_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lines = [line[2:] for block in blocks(page) for line in block.text.splitlines() if line.startswith("$ make")]
    lines += re.findall(r"`(make [^`]+)`", text)
    assert lines
    for line in lines:
        assert made(line) <= TARGETS, line


@pytest.mark.parametrize("page", NAMING, ids=shown)
def test_tools_and_modules_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [each for each in re.findall(r"python (tools/\w+\.py)", text) if not (ROOT / each).exists()] == []
    for name in re.findall(r"`(holdfast(?:\.\w+)+)`", text):
        assert resolve_name(name), name


def test_the_terms_of_the_glossary_are_in_order() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = [each.partition(",")[0].lower() for each in re.findall(r"^- \*\*([^*]+)\*\*", text, re.MULTILINE)]
    assert len(terms) > 50
    assert len(set(terms)) == len(terms)
    assert terms == sorted(terms)


@pytest.mark.parametrize(
    ("command", "targets"),
    [
        ("make", set()),
        ("make lint types", {"lint", "types"}),
        ("make soak HOURS=1", {"soak"}),
        ("make simulate FIRST=$(( $(date +%j) * 100 ))", {"simulate"}),
        ("make run     # a plane", {"run"}),
        ('make run ARGS="--port 8500"', {"run"}),
        ("pip install holdfast", set()),
    ],
)
def test_targets_are_read_from_a_command(command: str, targets: set[str]) -> None:
    assert made(command) == targets
