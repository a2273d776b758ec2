"""The help of every command, and shell completion."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from holdfast.cli import main
from holdfast.cli.app import COMMANDS, PANELS, make_app
from holdfast.cli.help import command_of
from support.source_tree import ROOT

ROOT_COMMAND: Final = command_of(make_app(), PANELS)


def every(command: Any = ROOT_COMMAND, name: str = "holdfast") -> Iterator[tuple[str, Any]]:
    yield name, command
    for word, each in getattr(command, "commands", {}).items():
        yield from every(each, f"{name} {word}")


EVERY: Final = dict(every())
GROUPS: Final = sorted(name.split()[1] for name, each in EVERY.items() if hasattr(each, "commands") and " " in name)


def test_the_help_shows_each_command_in_one_panel(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    positions = [shown.index(f"─ {panel} ─") for panel in PANELS]
    assert positions == sorted(positions)
    assert "─ Commands ─" not in shown
    for name in COMMANDS:
        assert len(re.findall(rf"^│ {name} ", shown, re.MULTILINE)) == 1, name


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_without_a_subcommand_prints_its_help(capsys: pytest.CaptureFixture[str], group: str) -> None:
    assert main([group]) == 0
    alone = capsys.readouterr()
    assert main([group, "--help"]) == 0
    assert alone == capsys.readouterr()
    assert f"Usage: holdfast {group}" in alone.out


def test_every_option_has_a_help_text_in_one_style() -> None:
    for name, command in EVERY.items():
        for each in command.params:
            text = each.help or ""
            where = f"{name} {each.opts[0]}: {text}"
            assert re.search(r"(\.|\.\)|\][)]?|\[/dim\])$", text.strip()), where
            assert "(default" not in text, where
            if getattr(each, "is_flag", False):
                assert each.metavar == "", where
            else:
                assert each.metavar is None or "[" not in each.metavar, where


def test_no_help_shows_the_type_of_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["jobs", "list", "--help"], ["locks", "-h"]):
        assert main(words) == 0
        assert "<bool>" not in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_is_an_option_too(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    assert main([flag]) == 0
    assert capsys.readouterr().out.startswith("holdfast ")


BASH: Final = """
PATH={bin}:$PATH
eval "$(holdfast --show-completion)"
complete -p holdfast >&2
complete_words() {{
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
  _holdfast_completion holdfast
  echo "${{COMPREPLY[@]}}"
}}
complete_words holdfast ap
complete_words holdfast jobs su
complete_words holdfast jobs list --st
"""


@pytest.mark.slow
def test_bash_completes_commands_subcommands_and_options(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    command = tmp_path / "holdfast"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    command.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [bash, "--norc", "-c", BASH.format(bin=tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "_holdfast_completion" in done.stderr, done
    assert done.stdout.split("\n")[:3] == ["approvals", "submit", "--state"], done
