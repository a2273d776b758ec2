"""Everything that can be wrong is one clear line on stderr and the right exit code, and never a traceback."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from holdfast.cli import main
from holdfast.cli.exit_codes import MEANING, Exit, exit_for
from holdfast.errors import AcquireTimeout, BadInput, HoldfastError, Misconfigured, Timeout, Unavailable
from support.cli.sessions import Done, Shell
from support.servers.redis import RedisExecutable, free_port, start_redis
from support.source_tree import ROOT

Refuses: TypeAlias = Callable[..., None]


@pytest.fixture
def refuses(shell: Shell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refuses:
    """In this process, because there are many of them and a new one takes half a second."""
    shell.make_store()
    monkeypatch.setenv("HOLDFAST_URL", shell.url)
    monkeypatch.chdir(shell.directory)

    def check_refusal(words: list[str], code: int, *hints: str) -> None:
        returned = main(words)
        shown = capsys.readouterr()
        check_line(Done(returned, shown.out, shown.err), code, *hints)

    return check_refusal


def check_line(done: Done, code: int, *hints: str) -> None:
    assert (done.code, done.out) == (code, ""), done
    (line,) = done.err.splitlines()
    assert line.startswith("holdfast: "), line
    for hint in hints:
        assert hint in line


@pytest.mark.parametrize("ttl", ["0", "-1", "nan", "inf", "-inf", "1e99", "0.001", "9999999"])
def test_a_ttl_that_cannot_be_is_named(refuses: Refuses, ttl: str) -> None:
    refuses(["run", "n", f"--ttl={ttl}", "--", "echo", "ran"], Exit.USAGE, "ttl")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["run", "n", "--ttl", "soon", "--", "echo"], "--ttl"),
        (["run", "n", "--timeout=-5", "--", "echo"], "timeout"),
        (["run", "n", "--grace=nan", "--", "echo"], "grace"),
        (["run", "n", "--max-hold", "0", "--", "echo"], "max_hold"),
        (["run", "n", "--ttl", "5", "--at-least", "6", "--", "echo"], "at_least"),
        (["run", "n", "--family", "two words", "--", "echo"], "family"),
        (["run", "n", "--risk", "", "--", "echo"], "risk"),
        (["run", "n", "--on-busy", "panic", "--", "echo"], "on-busy"),
        (["run", "n", "--policy-file", "missing.toml", "--", "echo"], "policy file"),
        (["run", "n"], "CMD"),
        (["run", "n", "--"], "CMD"),
        (["run"], "NAME"),
        (["run", "n", "tar", "--create"], "behind --"),
        (["watch", "--interval", "0"], "interval"),
        (["watch", "--count", "0"], "count"),
        (["locks", "--limit", "0"], "limit"),
        (["audit", "--limit", "-1"], "limit"),
        (["frobnicate"], "frobnicate"),
        (["locks", "--frobnicate"], "--frobnicate"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage_names_what_is_wrong(refuses: Refuses, words: list[str], hint: str) -> None:
    refuses(words, Exit.USAGE, hint)


@pytest.mark.parametrize("name", ["", "x" * 513, "a\nb", "bell\a", "{braces}", "tab\t"], ids=repr)
@pytest.mark.parametrize("command", [["inspect"], ["release", "--reason", "x", "--yes"]], ids=" ".join)
def test_a_name_that_cannot_be_a_key_is_refused(refuses: Refuses, command: list[str], name: str) -> None:
    refuses([*command, "--", name], Exit.USAGE, "name")


def test_and_it_is_the_same_in_a_process_of_its_own(shell: Shell) -> None:
    done = shell.finish(shell.start("run", "n", "--ttl", "-1", "--", "echo", "ran"))
    check_line(done, Exit.USAGE, "ttl: -1 s is out of range")


def test_a_binary_name_is_refused(shell: Shell) -> None:
    shell.make_store()
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "inspect", b"\xff\xfe"],
        env=shell.environment(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (Exit.USAGE, b"")
    assert done.stderr.startswith(b"holdfast: name:")


@pytest.mark.parametrize(
    ("url", "code", "hint"),
    [
        ("leases.db", Exit.USAGE, "has no scheme"),
        ("reddis://h", Exit.USAGE, "did you mean redis://"),
        ("mongodb://h", Exit.USAGE, "is not a store"),
        ("sqlite:///no/such/directory/leases.db", Exit.CONFIG, "does not exist"),
        ("sqlite:///", Exit.USAGE, "file name"),
    ],
)
def test_a_bad_url_says_what_would_be_good(refuses: Refuses, url: str, code: Exit, hint: str) -> None:
    refuses(["locks", "--url", url], code, hint)


def test_the_url_can_stand_before_and_after_the_command_and_the_nearer_one_counts(shell: Shell) -> None:
    with shell.locks() as locks, locks.lock("mine", ttl=600):
        other = f"sqlite:///{shell.directory}/other.db"
        Shell(shell.directory, other).make_store()
        assert shell.run("--url", other, "locks", "--json").json == []
        assert [each["key"] for each in shell.run("--url", other, "locks", "--url", shell.url, "--json").json] == [
            "mine"
        ]


@pytest.mark.parametrize("words", [["locks"], ["inspect", "n"], ["watch"], ["audit"], ["run", "n", "--", "echo"]])
def test_a_store_that_is_not_there_is_69(refuses: Refuses, words: list[str]) -> None:
    refuses(["--url", f"redis://127.0.0.1:{free_port()}", *words], Exit.UNAVAILABLE, "127.0.0.1")


@pytest.mark.server
def test_a_wrong_password_is_78_and_is_not_shown(shell: Shell, redis_executable: RedisExecutable) -> None:
    with start_redis(redis_executable, args=("--requirepass", "right")) as server:
        url = server.url.replace("redis://", "redis://:hunter2@")
        done = shell.run("locks", "--url", url)
        assert (done.code, done.out) == (Exit.CONFIG, "")
        assert len(done.err.splitlines()) == 1
        assert "hunter2" not in done.err


def test_a_file_that_is_no_database_is_78(shell: Shell, refuses: Refuses) -> None:
    (shell.directory / "leases.db").write_text("not a database, but long enough to be read as one" * 100)
    refuses(["locks"], Exit.CONFIG, "not an SQLite database")


def test_without_the_extra_the_command_says_what_to_install(shell: Shell) -> None:
    code = "import sys; sys.modules['typer'] = None; from holdfast.cli import main; sys.exit(main(['locks']))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=shell.environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'the command line needs: pip install "holdfast[cli]"\n'


def test_a_bug_is_one_line_and_a_traceback_only_for_those_who_ask(shell: Shell) -> None:
    shell.make_store()
    code = (
        "import sys; from holdfast.cli import main; from holdfast.cli.commands import locks as looking\n"
        "looking.put_json = None\n"
        "sys.exit(main(['locks', '--json']))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=shell.environment(), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == Exit.BUG
    assert re.fullmatch(r"holdfast: a bug of Holdfast: TypeError: .*\n", done.stderr)
    asked = shell.environment(HOLDFAST_DEBUG="1")
    done = subprocess.run(command, env=asked, capture_output=True, text=True, check=False, timeout=60)
    assert "Traceback" in done.stderr


def test_a_reader_that_goes_away_is_not_an_error(shell: Shell) -> None:
    with shell.locks() as locks:
        leases = [locks.lock(f"{'long-name' * 40}:{number}", ttl=600).acquire() for number in range(400)]
        script = f"{sys.executable} -m holdfast locks --json | head -c 10"
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", script],
            env=shell.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert all(lease.release() for lease in leases)


def test_help_and_version(shell: Shell) -> None:
    assert shell.run("version").out.startswith("holdfast ")
    assert shell.run("--version") == (0, shell.run("version").out, "")
    assert set(shell.run("version", "--json").json) == {"holdfast", "python"}
    assert shell.run().out == shell.run("--help").out
    assert "-- CMD" in shell.run("run", "-h").out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadInput("a", "b", "c"), 64),
        (AcquireTimeout("busy"), 75),
        (Unavailable("gone"), 69),
        (Timeout("slow"), 69),
        (Misconfigured("never"), 78),
        (HoldfastError("?"), 70),
    ],
)
def test_every_error_has_its_code(error: HoldfastError, code: int) -> None:
    assert exit_for(error) == code


def test_every_code_is_explained_and_none_is_used_twice() -> None:
    assert set(MEANING) == set(Exit)
    assert len({int(code) for code in Exit}) == len(Exit)


def test_the_manual_has_the_table_of_exit_codes_and_every_option_of_every_command() -> None:
    from typer.main import get_command

    from holdfast.cli.app import make_app
    from holdfast.cli.exit_codes import table

    manual = (ROOT / "docs" / "shell.md").read_text(encoding="utf-8")
    assert table() in manual, "docs/shell.md has another table of exit codes than cli/exit_codes.py:\n" + table()
    commands: dict[str, Any] = get_command(make_app()).commands  # type: ignore[attr-defined]  # a group has commands
    missing = [f"holdfast {name}" for name in commands if f"`holdfast {name}" not in manual]
    missing += [
        f"{name} {option}"
        for name, command in commands.items()
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--") and f"`{option}" not in manual
    ]
    assert missing == []


def test_each_command_comes_from_the_module_that_the_table_names_and_loads_no_other() -> None:
    from typer.main import get_command

    from holdfast.cli.app import COMMANDS, make_app

    def commands(only: str | None) -> set[str]:
        made: dict[str, Any] = get_command(make_app(only)).commands  # type: ignore[attr-defined]  # a group has some
        return set(made)

    assert commands(None) == set(COMMANDS)
    for module in set(COMMANDS.values()):
        assert commands(module) == {name for name, where in COMMANDS.items() if where == module}


def test_a_postgres_that_is_not_there_is_one_line(shell: Shell) -> None:
    done = shell.run("jobs", "list", "--database", f"postgresql://me@127.0.0.1:{free_port()}/db?pool_timeout=1")
    check_line(done, 69, "127.0.0.1")


@pytest.mark.parametrize("form", ["module", "package"])
def test_a_file_that_hides_a_library_is_named_and_is_no_bug_of_ours(shell: Shell, form: str) -> None:
    path = shell.directory / ("uvicorn.py" if form == "module" else "uvicorn/__init__.py")
    path.parent.mkdir(exist_ok=True)
    path.write_text("raise RuntimeError('not the library')")
    command = [sys.executable, "-m", "holdfast", "up", "--only", "api", "--port", "0"]
    hidden = shell.environment(PYTHONPATH=f"{shell.directory}:{ROOT / 'src'}", XDG_STATE_HOME=str(shell.directory))
    done = subprocess.run(
        command, cwd=shell.directory, env=hidden, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == Exit.CONFIG, done.stderr
    assert f"{path} was imported in place of the library uvicorn" in done.stderr
    assert "a bug" not in done.stderr
