"""Where the plane of a drill lives: a directory of its own, or quarters in the places of a configured deployment.

Promises: the processes of the plane see the settings that are meant and no others. In a directory of its own that means
that no variable of the environment says otherwise; in a deployment they have its file and its environment, as `holdfast
up` would, and only the places (and what was said on the command line) are other ones. URLs reach them in their
environment, because a URL may have a password, and anybody sees arguments. Whoever calls `prepare` calls `clear` when
the processes are gone.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from holdfast.drills.env.backends import Place
from holdfast.drills.env.deployment import Deployment
from holdfast.drills.env.processes import environment
from holdfast.errors import HoldfastError
from holdfast.plane.settings.settings import KEYS, PREFIX, Settings, WorkerSettings
from holdfast.plane.settings.sources import load

TTL_MIN_S: Final = 3.0  # a handler may wait 2 s for a lock, which its message has to outlast

# Whatever a deployment has set up for its own processes: those of a drill are judged by their ledger, and are no news.
_ALWAYS: Final = {"audit.enabled": "true", "otel.enabled": "false"}


@dataclass(frozen=True, slots=True)
class Quarters:
    """See the module."""

    settings: Settings
    options: tuple[str, ...]  # of every command
    variables: Mapping[str, str]  # the whole environment
    directory: Path  # that commands run in
    name: str = ""
    lent: tuple[Place, ...] = ()

    @property
    def told(self) -> str:
        """What is lent, for people."""
        return ", ".join(place.called(self.name) for place in self.lent)

    def prepare(self) -> None:
        """Make what is lent."""
        try:
            for place in self.lent:
                place.prepare(self.name)
        except BaseException:
            self.clear()
            raise

    def clear(self) -> None:
        """Clear every place, also if one of them cannot be; then that is raised, when all were tried."""
        trouble: list[HoldfastError] = []
        for place in self.lent:
            try:
                place.clear(self.name)
            except HoldfastError as error:
                trouble.append(error)
        if trouble:
            raise trouble[0]


def own(directory: Path, times: Mapping[str, float]) -> Quarters:
    """State, messages and leases in one SQLite file of the drill's own."""
    config = directory / "holdfast.toml"
    values = {"database": f"sqlite:///{quote(str(directory / 'plane.db'))}", **times}
    config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()), encoding="utf-8")
    variables = {name: value for name, value in environment().items() if not name.startswith(f"{PREFIX}_")}
    return Quarters(load(config, environment=variables), ("--config", str(config)), variables, directory)


def lent_by(deployment: Deployment) -> Quarters:
    """Parts of a deployment's places, under a name that nobody else has."""
    name, file = secrets.token_hex(4), deployment.settings.file
    told = deployment.said | {place.key: place.quarter(name) for place in deployment.places}
    said = {KEYS[key].variable: str(value) for key, value in {**told, **_ALWAYS}.items()}
    options = () if file is None else ("--config", file)
    return Quarters(load(file, flags=told), options, {**environment(), **said}, Path.cwd(), name, deployment.places)


def lease_times(ttl: float) -> dict[str, float]:
    """The settings of a plane whose leases last about so long, and no shorter than a plane can work with."""
    ttl = max(TTL_MIN_S, ttl)
    return {
        "scheduler.job_ttl": ttl,
        "scheduler.ack_wait": max(TTL_MIN_S, ttl / 2),
        "worker.lease_ttl": ttl,
        "worker.heartbeat": min(ttl / 4, WorkerSettings().heartbeat),
    }
