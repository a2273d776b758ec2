"""The sources of a runbook: opened at first use, and closed within a time limit.

Promises: reading creates nothing. A missing SQLite file is not created, and a database without a plane stays so:
both raise `NotGiven`. No source blocks the command: a step has `--timeout` seconds (`PATIENCE_S`), a request a share of
that, and a source that does not close within `CLOSE_NS` is abandoned. Sources are shown without their passwords.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from holdfast import aio
from holdfast.aio.client import Locks
from holdfast.core.ports import Clock, Entropy
from holdfast.errors import BadInput, HoldfastError, Misconfigured
from holdfast.ops.http_client import check_url
from holdfast.ops.runbooks.model import EvidenceSource, NotGiven
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Database
from holdfast.plane.settings.inventory import inventory
from holdfast.plane.settings.key_prefix import check_keys
from holdfast.plane.settings.settings import Settings
from holdfast.runtime.gather import within
from holdfast.runtime.system import SystemClock, SystemEntropy
from holdfast.stores.registry import URL_VARIABLE, redacted
from holdfast.types import NS, duration_ns

PATIENCE_S: Final = 5.0
REQUEST_SHARE: Final = 0.4
"""The share of a step's time for one request to a store, so that the step can report a failure and try again."""
CLOSE_NS: Final = 2 * NS
SPACING_S: Final = 3.0
WINDOW_S: Final = 900.0

_NEEDS_STORE: Final = frozenset({"inspect", "release", "locks", "audit", "watch"})
_NEEDS_DATABASE: Final = frozenset({"jobs", "runs", "approvals", "policy", "up", "worker", "runbook", "why"})
_NEEDS_SETTINGS: Final = _NEEDS_DATABASE | {"tune", "inventory"}

_PLANE: Final = "SELECT value FROM plane_meta WHERE name = 'format'"


@dataclass(frozen=True, slots=True)
class RunbookOptions:
    """The options of the command."""

    url: str | None = None  # of the lease store; None: from the settings
    metrics: tuple[str, ...] = ()
    prometheus: str | None = None
    ledger: str | None = None  # None: from the settings
    config: str | None = None  # as it was typed, for the commands of next steps
    database: str | None = None
    spacing: float = SPACING_S  # seconds between two scrapes
    window: float = WINDOW_S  # seconds of history
    patience: float = PATIENCE_S  # time limit of a step in seconds, without its intentional waits

    def check(self) -> RunbookOptions:
        """Return the options, or raise `BadInput` that names the invalid one."""
        for url in self.metrics:
            check_url("--metrics", url)
        if self.prometheus is not None:
            check_url("--prometheus", self.prometheus)
            if self.metrics:
                raise BadInput("--prometheus", "cannot be combined with --metrics", "use one of them")
        duration_ns("--interval", self.spacing, low_ns=NS // 100, high_ns=60 * NS)
        duration_ns("--timeout", self.patience, low_ns=NS // 10, high_ns=600 * NS)
        duration_ns("--since", self.window, low_ns=NS, high_ns=31 * 86_400 * NS)
        return self


@dataclass(slots=True)
class _Opened:
    """The open sources, shared by all steps."""

    locks: Locks | None = None
    contender: Locks | None = None
    database: Database | None = None


@dataclass(slots=True)
class RunbookContext:
    """One run of a runbook on one system."""

    settings: Settings
    given: RunbookOptions
    arguments: Mapping[str, str] = field(default_factory=dict)
    clock: Clock = field(default_factory=SystemClock)
    entropy: Entropy = field(default_factory=SystemEntropy)
    notes: dict[str, Any] = field(
        default_factory=dict
    )  # values that a step leaves for later steps, in runbooks that run in order
    _opened: _Opened = field(default_factory=_Opened)

    def about(self, argument: str, id: str) -> RunbookContext:
        """The same sources, for one job or run. The caller that made the first scene closes them."""
        return replace(self, arguments={**self.arguments, argument: id})

    # Sources.

    @property
    def lease_url(self) -> str:
        """The lease URL: from the options, else from the settings, else `$HOLDFAST_URL`."""
        if self.given.url is not None:
            return self.given.url
        chosen = self.settings.leases is not None or self.settings.origin("database").kind != "default"
        return self.settings.lease_url if chosen else os.environ.get(URL_VARIABLE) or self.settings.lease_url

    @property
    def ledger(self) -> str | None:
        """The path of the audit ledger."""
        return self.given.ledger or self.settings.audit_path

    def where(self, source: EvidenceSource) -> str:
        """A source as text."""
        places = {
            EvidenceSource.LEASES: redacted(self.lease_url),
            EvidenceSource.DATABASE: redacted(self.settings.database_url),
            EvidenceSource.BUS: redacted(self.settings.bus or self.settings.database_url),
            EvidenceSource.METRICS: redacted(self.given.prometheus or "")
            or ", ".join(map(redacted, self.given.metrics)),
            EvidenceSource.LEDGER: self.ledger or "",
            EvidenceSource.SETTINGS: self.settings.file or "defaults and environment",
        }
        return places[source]

    def exact(self, command: str) -> str:
        """A command with the options for the inspected sources, if their defaults differ. Contains no password."""
        words = command.split(" ")
        if self.ledger is not None:
            command = command.replace("LEDGER", shlex.quote(self.ledger))
        command = command.replace("$ADDRESS", self.api_address)
        if "holdfast" not in words[:-1]:
            return command
        head = words[words.index("holdfast") + 1]
        known = (
            self._store_options()
            if head in _NEEDS_STORE
            else {
                "--config": self.given.config if head in _NEEDS_SETTINGS else None,
                "--database": self.given.database if head in _NEEDS_DATABASE else None,
                "--url": self.given.url if head in {"runbook", "why"} else None,
            }
        )
        given = [f"{option} {shlex.quote(redacted(value))}" for option, value in known.items() if value is not None]
        return " ".join((command, *given))

    @property
    def api_address(self) -> str:
        """The address of the API, by the settings."""
        api = self.settings.api
        return f"http://{api.host}:{api.port}"

    def _store_options(self) -> dict[str, str | None]:
        """The options that make a command about leases use this lease store, if its default differs."""
        given, variable = self.given, os.environ.get(URL_VARIABLE)
        if given.url is not None:
            return {"--url": given.url}
        if given.config is not None or given.database is not None:
            return {"--config": given.config, "--database": given.database}
        named = self.settings.file is not None or any(
            self.settings.origin(key).kind != "default" for key in ("leases", "database")
        )
        if variable == self.lease_url or (named and not variable):
            return {}
        return {"--url": self.lease_url} if self.settings.file is None else {"--config": self.settings.file}

    def ttl(self, family: str) -> float | None:
        """The TTL of a family, by the settings."""
        return next((line.ttl for line in inventory(self.settings) if line.family == family), None)

    @property
    def request_ns(self) -> int:
        """The time limit of one request."""
        return round(self.given.patience * REQUEST_SHARE * NS)

    # Opening.

    def locks(self) -> Locks:
        """The locks, or `NotGiven`."""
        if self._opened.locks is None:
            url = self.lease_url
            if url.lower().startswith("memory:"):
                raise NotGiven("memory:// belongs to one process, and cannot be read from another")
            _check_file(url, "lease store")
            self._opened.locks = aio.connect(url, service="runbook", request_timeout=self.request_ns / NS)
        return self._opened.locks

    def contender(self) -> Locks:
        """The same locks as another process would see them, for runbooks that test them."""
        self.locks()  # raises if the source is missing
        if self._opened.contender is None:
            self._opened.contender = aio.connect(
                self.lease_url, service="runbook", instance="contender", request_timeout=self.request_ns / NS
            )
        return self._opened.contender

    async def database(self) -> Database:
        """The database of the plane, or `NotGiven`. `BadInput` if its lock keys differ from those of the settings."""
        if self._opened.database is None:
            _check_file(self.settings.database_url, "database")
            self._opened.database = open_database(self.settings.database_url, clock=self.clock)
        database = self._opened.database
        try:
            await database.read(lambda tx: tx.query(_PLANE))
        except Misconfigured as error:
            raise NotGiven(f"there is no plane in that database ({error})") from error
        await check_keys(database, self.settings.names.keys)  # else all its locks would look free
        return database

    async def close(self) -> None:
        """Close all sources. Those that hang are abandoned: their threads end with the process."""
        places = (self._opened.contender, self._opened.locks, self._opened.database)
        for close in [each.close for each in places if each is not None]:
            with suppress(HoldfastError, OSError):
                await within(CLOSE_NS, close)


def _check_file(url: str, what: str) -> None:
    scheme, _, place = url.partition("?")[0].partition("://")
    if scheme.lower() == "sqlite" and not (path := Path(unquote(place[1:]))).exists():
        raise NotGiven(f"there is no {what} at {path}")


@asynccontextmanager
async def scene(
    settings: Settings, given: RunbookOptions, arguments: Mapping[str, str]
) -> AsyncIterator[RunbookContext]:
    """A scene for the duration of the block."""
    made = RunbookContext(settings, given.check(), arguments)
    try:
        yield made
    finally:
        await made.close()
