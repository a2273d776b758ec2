"""The workspace of a drill's plane: its own directory, or sandboxes in the backends of a configured deployment.

Promises: the processes of the plane see only the intended settings. In its own directory, no environment variable
overrides them. On a deployment, the processes use its file and its environment, as `holdfast up` would; only the
backends and the options of the command line differ. URLs are passed in the environment, because a URL may contain a
password, and arguments are public. The caller of `prepare` calls `clear` when the processes are gone.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from holdfast.drills.env.backends import Backend
from holdfast.drills.env.deployment import Deployment
from holdfast.drills.env.processes import environment
from holdfast.errors import HoldfastError
from holdfast.plane.settings.settings import KEYS, PREFIX, Settings, WorkerSettings
from holdfast.plane.settings.sources import load

TTL_MIN_S: Final = 3.0  # a handler may wait 2 s for a lock, and its message must outlast the wait

# Exporters of a deployment: the processes of a drill are judged by their ledgers, and must not report to them.
_ALWAYS: Final = {"audit.enabled": "true", "otel.enabled": "false"}


@dataclass(frozen=True, slots=True)
class Sandbox:
    """See the module."""

    settings: Settings
    options: tuple[str, ...]  # of every command
    variables: Mapping[str, str]  # the whole environment
    directory: Path  # the working directory of commands
    name: str = ""
    lent: tuple[Backend, ...] = ()

    @property
    def told(self) -> str:
        """The sandboxes as text."""
        return ", ".join(place.called(self.name) for place in self.lent)

    def prepare(self) -> None:
        """Create the sandboxes."""
        try:
            for place in self.lent:
                place.prepare(self.name)
        except BaseException:
            self.clear()
            raise

    def clear(self) -> None:
        """Clear every sandbox, even if one of them fails; then raise that error."""
        trouble: list[HoldfastError] = []
        for place in self.lent:
            try:
                place.clear(self.name)
            except HoldfastError as error:
                trouble.append(error)
        if trouble:
            raise trouble[0]


def own(directory: Path, times: Mapping[str, float]) -> Sandbox:
    """State, messages and leases in one SQLite file of the drill."""
    config = directory / "holdfast.toml"
    values = {"database": f"sqlite:///{quote(str(directory / 'plane.db'))}", **times}
    config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()), encoding="utf-8")
    variables = {name: value for name, value in environment().items() if not name.startswith(f"{PREFIX}_")}
    return Sandbox(load(config, environment=variables), ("--config", str(config)), variables, directory)


def lent_by(deployment: Deployment) -> Sandbox:
    """Sandboxes in a deployment's backends, under a unique name."""
    name, file = secrets.token_hex(4), deployment.settings.file
    told = deployment.said | {place.key: place.quarter(name) for place in deployment.places}
    said = {KEYS[key].variable: str(value) for key, value in {**told, **_ALWAYS}.items()}
    options = () if file is None else ("--config", file)
    return Sandbox(load(file, flags=told), options, {**environment(), **said}, Path.cwd(), name, deployment.places)


def lease_times(ttl: float) -> dict[str, float]:
    """The settings of a plane with leases of about this length, but not below the supported minimum."""
    ttl = max(TTL_MIN_S, ttl)
    return {
        "scheduler.job_ttl": ttl,
        "scheduler.ack_wait": max(TTL_MIN_S, ttl / 2),
        "worker.lease_ttl": ttl,
        "worker.heartbeat": min(ttl / 4, WorkerSettings().heartbeat),
    }
