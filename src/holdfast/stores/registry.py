"""Which engine a URL means. Imports an engine only when it is requested, so that optional drivers stay optional.

Promises: a URL is understood or refused before anything is sent; the error names what would be accepted; no
password appears in any text made here. Does not promise that the engine can be reached: engines connect when used.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast
from urllib.parse import quote

from holdfast.core.ports import Capabilities, Store
from holdfast.errors import BadInput, Misconfigured
from holdfast.runtime.durable_files import make_directory

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

URL_VARIABLE = "HOLDFAST_URL"
DEFAULT_FILE = "leases.db"  # leases, and the plane of a user who names no database
FORMER_PLANE_FILE = "holdfast-plane.db"  # the default file of planes before they shared `DEFAULT_FILE`


class Engine(Protocol):
    """One opened engine: its stores in sync and asyncio over the same leases."""

    @property
    def capabilities(self) -> Capabilities:
        """What its stores can do."""
        ...

    @property
    def blocking(self) -> Store:
        """The store for ordinary code and for the renewer, safe from any thread. Always the same one."""
        ...

    def asynchronous(self) -> Store:
        """Make a store for the running event loop. It is used, and closed, on that loop only."""
        ...


class _Built(NamedTuple):
    module: str
    extra: str | None = None  # what `pip install "holdfast[…]"` needs to bring
    drivers: tuple[str, ...] = ()  # the modules that the extra brings


_SQLITE = _Built("holdfast.stores.sqlite.engine")
_REDIS = _Built("holdfast.stores.redis.engine", "redis", ("redis", "hiredis"))
_ETCD = _Built("holdfast.stores.etcd.engine", "etcd", ("httpcore", "anyio"))
_CLUSTER = _REDIS._replace(module="holdfast.stores.redis.cluster_store")
_NATS = _Built("holdfast.stores.nats.engine", "nats", ("nats",))
_POSTGRES = _Built("holdfast.stores.postgres.engine", "postgres-binary", ("psycopg",))
_QUORUM = _Built("holdfast.stores.quorum.engine", "redis", ("redis", "hiredis"))

BUILT: Mapping[str, _Built] = {
    "memory": _Built("holdfast.stores.memory.store"),
    "sqlite": _SQLITE,
    "redis": _REDIS,
    "rediss": _REDIS,
    "unix": _REDIS,
    "redis+unix": _REDIS,
    "valkey": _REDIS,
    "valkeys": _REDIS,
    "redis+sentinel": _REDIS,
    "rediss+sentinel": _REDIS,
    "redis+cluster": _CLUSTER,
    "rediss+cluster": _CLUSTER,
    "redlock": _QUORUM,
    "etcd": _ETCD,
    "etcds": _ETCD,
    "nats": _NATS,
    "tls": _NATS,
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
}
ENTRY_POINTS: Final = "holdfast.stores"  # the group in which other packages register a scheme

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
_USERINFO = re.compile(r"(://[^:/@\s]*):.*@", re.DOTALL)  # wherever it stands: a URL may have another one inside
_SECRET_PARAMETER = re.compile(r"([?&;][^=&;#]*(?:pass|pwd|secret|token|auth|key)[^=&;#]*=)[^&;#]*", re.IGNORECASE)
_MASK = "***"


def open_engine(url: str | None = None) -> Engine:
    """Open the engine that a URL names. No URL: `$HOLDFAST_URL`, else a SQLite file in the user's state directory."""
    field = "url"
    if url is None:
        field, url = _default_url()
    if not isinstance(url, str):
        raise BadInput(field, f"{type(url).__name__} is not a URL", "give text such as sqlite:///leases.db")
    scheme = _scheme_of(field, url)
    built = BUILT.get(scheme)
    if built is None:
        return _open_foreign(field, scheme, url)
    try:
        module = importlib.import_module(built.module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in built.drivers:
            raise
        raise Misconfigured(
            f'{scheme}:// needs a driver that is not installed ({error.name}): pip install "holdfast[{built.extra}]"'
        ) from error
    return cast("Engine", module.open_engine(url))


def open_client(client: object) -> Engine:
    """An engine for the server of a client that the caller has made."""
    if any(base.__module__.partition(".")[0] == "redis" for base in type(client).__mro__):
        return cast("Engine", importlib.import_module("holdfast.stores.redis.from_client").engine_of(client))
    raise BadInput("client", f"{type(client).__name__} is not a client of redis-py", "give one of those, or a URL")


def check_engine(field: str, engine: object) -> Engine:
    """Return an engine that another package made, or raise `BadInput` that names the missing part."""
    if not isinstance(getattr(engine, "capabilities", None), Capabilities):
        missing = "capabilities (a holdfast.stores.Capabilities)"
    elif not callable(getattr(getattr(engine, "blocking", None), "acquire", None)):
        missing = "blocking (a holdfast.stores.Store)"
    elif not callable(getattr(engine, "asynchronous", None)):
        missing = "asynchronous() (which makes a holdfast.stores.Store)"
    else:
        return cast("Engine", engine)
    raise BadInput(field, f"{type(engine).__name__} is not an engine: it lacks {missing}", "see docs/stores/own.md")


def _open_foreign(field: str, scheme: str, url: str) -> Engine:
    """Open an engine of another package, which registered the scheme as an entry point."""
    entries = _entry_points()
    mine = [entry for entry in entries if entry.name.lower() == scheme]
    if not mine:
        raise _refusal(field, scheme, [*BUILT, *(entry.name.lower() for entry in entries)])
    if len(mine) > 1:
        names = " and ".join(sorted(map(_provider, mine)))
        raise Misconfigured(f"{field}: {scheme}:// is provided by {names}: uninstall all but one of them")
    provider = f"{scheme}:// is provided by {_provider(mine[0])}"
    try:
        opener = mine[0].load()
    except Exception as error:
        raise Misconfigured(
            f"{provider}, which cannot be imported ({type(error).__name__}: {error}): reinstall or upgrade it"
        ) from error
    if not callable(opener):
        raise Misconfigured(f"{provider}, which is no function: its entry point must name a function of the URL")
    engine = cast("Callable[[str], object]", opener)(url)
    try:
        return check_engine(field, engine)
    except BadInput as error:
        raise Misconfigured(f"{provider}, which opened something else ({error.problem}): upgrade it") from error


def _entry_points() -> list[EntryPoint]:
    # Imported here: reading the metadata of all installed packages takes longer than the rest of `connect`.
    from importlib.metadata import entry_points

    # A package that is found twice on the path (an editable install over a wheel) is one package.
    return [*{(entry.name, entry.value): entry for entry in entry_points(group=ENTRY_POINTS)}.values()]


def _provider(entry: EntryPoint) -> str:
    return f"{entry.dist.name if entry.dist is not None else 'an unknown package'} ({entry.value})"


def redacted(url: str) -> str:
    """Hide the passwords of a URL that is to be shown. Where it is ambiguous, too much is hidden, never too little."""
    shown = _USERINFO.sub(rf"\1:{_MASK}@", _SECRET_PARAMETER.sub(rf"\1{_MASK}", url))
    scheme, slashes, rest = shown.partition("://") if "://" in shown else ("", "", shown)
    # A password may hold an unescaped '/', '?' or '@', so everything up to the last '@' counts as the user's part.
    userinfo, at, place = rest.rpartition("@")
    if not at or rest.startswith("/"):
        return shown
    user, colon, _password = userinfo.partition(":")
    if not colon and scheme.lower() in ("nats", "tls"):
        return f"{scheme}{slashes}{_MASK}@{place}"  # there it is a token, and no user
    return f"{scheme}{slashes}{user}{colon}{_MASK if colon else ''}@{place}"


def state_directory() -> Path:
    """Say where the default file lives: `$XDG_STATE_HOME/holdfast`, else `~/.local/state/holdfast`. Makes nothing."""
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    if base.is_absolute():  # the XDG rules say that a relative path is to be ignored
        return base / "holdfast"
    try:
        return Path.home() / ".local" / "state" / "holdfast"
    except RuntimeError as error:
        raise Misconfigured(
            f"no place for the default store: the user has no home directory; set {URL_VARIABLE} or XDG_STATE_HOME"
        ) from error


def former_plane_file() -> Path | None:
    """The default file of a plane of an older version, which continues using it. None: there is none."""
    path = state_directory() / FORMER_PLANE_FILE
    return path if path.exists() else None


def former_file_note(former: Path) -> str:
    """What a command prints where such a file is."""
    where = f"sqlite:///{quote(str(former))}"
    return (
        f"the plane of an older version, with its leases, is in {former.name} (--database {where}); "
        f"to move it to {DEFAULT_FILE}, the default of all commands now, see 'One default file' in docs/shell.md"
    )


def _default_url() -> tuple[str, str]:
    """Find the URL to use when none was given, and the name of where it came from."""
    from_environment = os.environ.get(URL_VARIABLE, "")
    if from_environment:
        return f"${URL_VARIABLE}", from_environment
    directory = state_directory()
    try:
        # Only this user: the file names what a team locks and when, and who may write it may take any lock.
        make_directory(directory, 0o700, parents=True)
    except OSError as error:
        raise Misconfigured(
            f"the default store cannot be made: {directory}: {error.strerror or error}; "
            f"set {URL_VARIABLE}, or XDG_STATE_HOME to a directory that can be written"
        ) from error
    return "url", f"sqlite:///{quote(str(directory / DEFAULT_FILE))}"


def _scheme_of(field: str, url: str) -> str:
    match = _SCHEME.match(url)
    if match is None:
        raise BadInput(
            field, f"{redacted(url)!r} has no scheme", "a file is sqlite:///leases.db, a server redis://host:6379/0"
        )
    return match[1].lower()


def _refusal(field: str, scheme: str, known: Sequence[str]) -> BadInput:
    there_is = ", ".join(f"{name}://" for name in known)
    near = difflib.get_close_matches(scheme, known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}://? There is {there_is}" if near else f"use one of {there_is}"
    return BadInput(field, f"{scheme}:// is not a store", hint)
