"""The files in docs/deployment.md are valid, and name commands, settings and endpoints that exist."""

from __future__ import annotations

import configparser
import re
import shlex
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from holdfast.cli.app import PANELS, make_app
from holdfast.cli.help import command_of
from holdfast.plane.process.plane import check_parts
from holdfast.plane.settings.settings import KEYS, Settings
from support.source_tree import ROOT

PAGES: Final = ("deployment.md", "tutorial.md", "troubleshooting.md", "installation.md", "testing.md", "compared.md")
TEXT: Final = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
SNIPPETS: Final = dict(re.findall(r"<!-- check: (\w+) -->\n```\w+\n(.*?)```", TEXT, re.DOTALL))
ROOT_COMMAND: Final = command_of(make_app(), PANELS)


def check_command(words: list[str]) -> None:
    """Fails unless this is a `holdfast` command with options that it has."""
    command: Any = ROOT_COMMAND
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    known = {option for each in command.params for option in each.opts}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in known | {"--help"}, (command.name, word)
    if "--only" in words:
        check_parts(words[words.index("--only") + 1].split(","))


def check_environment(names: Iterator[str]) -> None:
    known = {each.variable for each in KEYS.values()} | {"HOLDFAST_CONFIG"}
    assert {each for each in names if each.startswith("HOLDFAST_")} <= known


def test_the_systemd_unit_is_valid() -> None:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names of systemd have capitals
    parser.read_string(SNIPPETS["systemd"])
    assert parser.sections() == ["Unit", "Service", "Install"]
    service = parser["Service"]
    for name in ("ExecStart", "ExecStartPre"):
        program, *words = shlex.split(service[name])
        assert program.endswith("/holdfast")
        check_command(words)
    check_environment(iter([service["Environment"].partition("=")[0]]))
    assert int(service["TimeoutStopSec"]) > Settings().grace


def test_the_compose_file_is_valid() -> None:
    document = yaml.safe_load(SNIPPETS["compose"])
    for name in ("plane", "worker"):
        service = document["services"][name]
        program, *words = service["command"]
        assert program == "holdfast"
        check_command(words)
        check_environment(iter(service.get("environment", {})))
        assert int(service["stop_grace_period"].removesuffix("s")) > Settings().grace
        assert set(service["depends_on"]) <= set(document["services"])


def test_the_kubernetes_manifest_is_valid() -> None:
    document = yaml.safe_load(SNIPPETS["kubernetes"])
    pod = document["spec"]["template"]
    assert document["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > Settings().grace
    (container,) = pod["spec"]["containers"]
    program, *words = container["command"]
    assert program == "holdfast"
    check_command(words)
    check_environment(each["name"] for each in container["env"])
    paths = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {"startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"}
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["spec"]["volumes"]}


def test_the_proxy_waits_longer_than_clients() -> None:
    text = SNIPPETS["nginx"]
    assert text.count("{") == text.count("}")
    (seconds,) = re.findall(r"proxy_read_timeout (\d+)s;", text)
    assert int(seconds) > 60


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    named = re.findall(r"`holdfast ([a-z][^`\n]*)`", text) + re.findall(
        r"^\$ holdfast ([^\n#&|>]*)", text, re.MULTILINE
    )
    assert named or page in ("compared.md", "testing.md")
    for each in named:
        words = shlex.split(each.replace("…", ""))
        assert words[0] in ROOT_COMMAND.commands or words[0].startswith("-"), each
        if words[0] in ROOT_COMMAND.commands and words[0] != "run":
            check_command(words)
