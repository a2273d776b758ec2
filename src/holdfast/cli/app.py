"""The commands and their failures: usage errors and Holdfast's own errors become one line and an exit code."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Final

import typer

# Typer bundles Click since 0.2x and imported it before; the base class of its own errors is the same in both.
from holdfast import __version__
from holdfast.cli.exit_codes import Exit, exit_for
from holdfast.cli.help import HELP, command_of, print_help
from holdfast.cli.options import Url
from holdfast.cli.output.screen import print_note, put_json
from holdfast.cli.output.stdio import let_go, make_fit
from holdfast.cli.shadowed_imports import shadowing_file
from holdfast.errors import HoldfastError

# Typer carries Click inside since 0.2x and imported it before; the base class of its own errors is the same in both.
_UsageProblem: type[Exception] = typer.BadParameter.__mro__[2]

PANELS: Final[Mapping[str, Mapping[str, str]]] = {
    "Locks": {
        "run": "run",
        "locks": "locks",
        "inspect": "locks",
        "watch": "watch",
        "release": "release",
        "audit": "release",
        "guard": "guard",
    },
    "Jobs and workflows": {
        "jobs": "jobs",
        "runs": "runs",
        "schedules": "schedules",
        "approvals": "approvals",
        "resources": "resources",
        "workers": "admin.workers",
        "tenants": "admin.tenants",
    },
    "Operate": {
        "up": "up",
        "worker": "worker",
        "config": "admin.config",
        "tokens": "admin.tokens",
        "policy": "policy",
        "inventory": "locks",
        "access": "access",
        "why": "runbook",
        "runbook": "runbook",
        "doctor": "doctor",
        "alerts": "alerts",
        "dashboard": "dashboard",
        "tune": "tune",
        "version": "",
    },
    "Prove": {
        "demo": "drill",
        "drill": "drill",
        "history": "audit",
        "check": "audit",
    },
}
COMMANDS: Final[Mapping[str, str]] = {name: module for panel in PANELS.values() for name, module in panel.items()}
"""Each command and its module, in the order of the help, which shows them in panels. Only the module of the requested
command is imported. `version` is in this one."""


def make_app(only: str | None = None) -> typer.Typer:
    """The application with all commands, or with those of one module."""
    app = typer.Typer(
        name="holdfast",
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": list(HELP)},
        epilog="See it work: [bold]holdfast demo[/bold]\n\n"
        "Exit codes: 75 the lock is busy, 76 the lease was lost, 69 the store is unavailable, 64 bad usage; "
        "docs/shell.md lists the others.",
    )
    app.callback(invoke_without_command=True)(_root)
    for module in dict.fromkeys(COMMANDS.values()) if only is None else [only]:
        if module:
            import_module(f"holdfast.cli.commands.{module}").add_to(app)
        else:
            app.command()(version)
    return app


def version(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the version."""
    if json:
        put_json({"holdfast": __version__, "python": sys.version.split()[0]})
    else:
        print(f"holdfast {__version__}")


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


def _root(
    context: typer.Context,
    url: Url = None,
    version: Annotated[  # noqa: ARG001 - its callback acts on it
        bool,
        typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Distributed leases that survive incidents: run commands once, list holders, break stuck locks."""
    context.obj = url
    print_help(context)


def _module(arguments: Sequence[str]) -> str | None:
    """The module of the requested command. None: the arguments are not simple, and all modules are needed."""
    rest = list(arguments)
    if rest[:1] == ["--url"]:
        del rest[:2]
    elif rest and rest[0].startswith("--url="):
        del rest[0]
    return COMMANDS.get(rest[0]) if rest else None


def run_app(arguments: Sequence[str]) -> int:
    """Parse, call, and turn every error into one line per problem and an exit code."""
    make_fit()
    code = _called(arguments)
    try:
        sys.stdout.flush()
    except OSError as error:
        let_go(1)
        if not isinstance(error, BrokenPipeError):  # the reader of our output has stopped, which is no error
            print_note(f"standard output cannot be written: {error.strerror or error}")
            code = code or Exit.IO  # earlier effects of the command stay
    try:
        sys.stderr.flush()
    except OSError:
        let_go(2)
    return code


def _called(arguments: Sequence[str]) -> int:
    try:
        with _quiet():
            command = command_of(make_app(_module(arguments)), PANELS)
            result = command(args=list(arguments), prog_name="holdfast", standalone_mode=False)
    except _UsageProblem as error:
        return _usage(error, arguments)
    except typer.Abort:
        print_note("aborted")
        return Exit.NO
    except HoldfastError as error:
        _debug()
        named = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        for line in getattr(
            error, "lines", (f"{error}{named}",)
        ):  # a definition may have many problems, each with its position
            print_note(line)
        return exit_for(error)
    except KeyboardInterrupt:
        return Exit.SIGNALLED + 2
    except (BrokenPipeError, SystemExit) as error:
        # The reader of our output is gone, as in `holdfast locks | head -1` (Typer makes an exit of that).
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        let_go(1)
        return Exit.OK
    except OSError as error:
        if error.errno is None:
            return _bug(error)
        _debug()
        if (problem := _refused(error)) is not None:
            print_note(problem)
        return Exit.IO
    except Exception as error:  # noqa: BLE001 - a traceback does not help on call; HOLDFAST_DEBUG prints it
        return _bug(error)
    return result if isinstance(result, int) else Exit.OK


def _bug(error: Exception) -> int:
    _debug()
    if (file := shadowing_file(error)) is not None:
        text = (
            f"{file} was imported in place of the library {file.stem if file.stem != '__init__' else file.parent.name}"
        )
        print_note(
            f"{text}, which failed ({type(error).__name__}: {error}); rename the file or run from another directory"
        )
        return Exit.CONFIG
    print_note(f"a bug of Holdfast: {type(error).__name__}: {error} (HOLDFAST_DEBUG=1 shows where)")
    return Exit.BUG


def _refused(error: OSError) -> str | None:
    """An error of the operating system as text. None: standard output failed, which is reported at the end."""
    try:
        sys.stdout.flush()
    except OSError:
        return None
    try:
        Path.cwd()
    except OSError:
        return "the current directory does not exist any more; change to an existing one"
    about = "" if error.filename is None else f": {error.filename}"
    return f"{error.strerror or error}{about} (HOLDFAST_DEBUG=1 shows where)"


def _usage(error: Exception, arguments: Sequence[str]) -> int:
    text: str = getattr(error, "format_message", error.__str__)().rstrip(".")
    if "run" in arguments and "--" not in arguments and type(error).__name__ == "NoSuchOption":
        text += "; options of the command itself go behind --: holdfast run NAME -- CMD …"
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "holdfast"
    print_note(f"{text}; see `{where} --help`")
    return Exit.USAGE


def _debug() -> None:
    if os.environ.get("HOLDFAST_DEBUG"):
        raise  # noqa: PLE0704 - called only while an error is being handled; it is to go on its way


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress log lines, which are for services. Commands report what a person at a shell should know."""
    log, lines = logging.getLogger("holdfast"), _WarningHandler()
    propagate, log.propagate = log.propagate, False
    log.addHandler(lines)
    logging.getLogger("psycopg").addHandler(logging.NullHandler())  # our own errors contain its messages
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_rest, **_named: print_note(f"warning: {message}")
            yield
    finally:
        log.removeHandler(lines)
        log.propagate = propagate


class _WarningHandler(logging.Handler):
    """Prints the library's log lines that no command reports. Commands report events of leases themselves."""

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "holdfast_kind") or record.levelno < logging.WARNING:
            return
        error = record.exc_info[1] if record.exc_info else None
        told = hasattr(record, "holdfast")  # then the error is one of its fields
        print_note(record.getMessage() + ("" if error is None or told else f" ({type(error).__name__}: {error})"))
        if error is not None and os.environ.get("HOLDFAST_DEBUG"):
            traceback.print_exception(error)
