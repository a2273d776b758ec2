"""The commands that a newcomer types: they are listed, they do what the README says, and CI runs the same."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.source_tree import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROMISED = {
    *(
        "run",
        "test",
        "test-fast",
        "coverage",
        "test-lowest",
        "bench",
        "drill",
        "simulate",
        "docs",
        "format",
        "lint",
        "types",
        "ledger",
        "lock",
        "clean",
    ),
}

CORES = os.cpu_count() or 1

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@needs_make
def test_make_alone_lists_every_command() -> None:
    done = make()
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"^  make ([a-z-]+)", done.stdout, re.MULTILINE)) >= PROMISED


@needs_make
@pytest.mark.parametrize(
    ("target", "commands"),
    [
        ("run", ["holdfast up --sample"]),
        ("drill", ["holdfast drill quick --report build/drill.html"]),
        ("lint", ["ruff check", "ruff format --check"]),
        ("types", ["mypy"]),
        ("test-full", ["CAMPAIGNS=full", f"pytest -q -n {2 * CORES} --maxprocesses 8 --dist worksteal"]),
        ("test-fast", [f'pytest -q -n {2 * CORES} --maxprocesses 8 -m "not server and not slow"']),
        ("coverage", ["coverage run -m pytest", '-m "not server and not slow"', "coverage report"]),
        (
            "test-lowest",
            [
                "python3.11",
                "-m venv .venv-lowest",
                "-r requirements/lowest.txt",
                '-m "not server and not slow"',
                "tests/integration/stores",
            ],
        ),
        ("simulate", ["-m holdfast.testing.simulate --seeds 1000 --first 0"]),
    ],
)
def test_a_command_runs_what_it_says(target: str, commands: list[str]) -> None:
    done = make("--dry-run", "--always-make", target)  # whatever was made here before
    assert done.returncode == 0, done.stderr
    for command in commands:
        assert command in done.stdout


@needs_make
def test_simulation_can_be_replayed_from_a_seed() -> None:
    assert "--seeds 1 --first 4711" in make("--dry-run", "simulate", "SEEDS=1", "FIRST=4711").stdout
    campaign = make("--dry-run", "simulate", "HOURS=500").stdout
    assert "--hours 500 --first 0 --campaign build/campaign.json" in campaign


def test_every_phony_target_is_explained() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    explained = set(re.findall(r"^([a-z-]+):.*## \S", MAKEFILE, re.MULTILINE))
    assert set(phony.split()) == explained


def test_continuous_integration_runs_what_everybody_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = script.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert lines[-1] == "exec make test"


@needs_make
@pytest.mark.parametrize(("user", "installs"), [("0", True), ("1000", False)])
def test_system_packages_are_installed_where_that_is_allowed_and_else_said_to_be_missing(
    tmp_path: Path, user: str, installs: bool
) -> None:
    """On a machine that has none of them, with an `apt-get` that brings them."""
    programs, asked = tmp_path / "bin", tmp_path / "asked"
    programs.mkdir()
    (tmp_path / "venv").touch()
    for name in ("cp", "env", "touch"):
        (programs / name).symlink_to(shutil.which(name) or name)
    _script(programs / "id", f"echo {user}")
    _script(
        programs / "apt-get",
        f"echo $* >> {asked}; for each in chromium promtool spin gcc; do cp {programs}/id {programs}/$each; done",
    )
    done = subprocess.run(
        [shutil.which("make") or "make", f"{tmp_path}/system", f"STAMPS={tmp_path}", "PYTHON=python3"],
        cwd=ROOT,
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    wanted = "install --yes --no-install-recommends chromium prometheus spin gcc libc6-dev\n"
    assert (asked.read_text(encoding="utf-8") if asked.exists() else "") == (wanted if installs else "")
    assert ("skipped, because a system package is missing: tests of the status page" in done.stdout) is not installs
    assert (tmp_path / "system").exists() is installs


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.mark.threat("X18")
def test_setting_up_fetches_nothing_but_pinned_packages() -> None:
    assert not re.search(r"\b(curl|wget|git clone)\b", MAKEFILE)
    installs = [line for line in MAKEFILE.splitlines() if "$(PIP) install" in line]
    assert [line for line in installs if "--no-deps" not in line] == [
        "\t@$(PIP) install uv"
    ]  # the resolver of `make lock`
