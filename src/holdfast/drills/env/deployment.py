"""A configured deployment as a drill sees it: its settings, and their backends.

Promises: a drill runs on it only if *every* backend is marked as part of a test deployment. So settings that mix a test
server with a production server are refused.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from holdfast.drills.env.backends import Backend, FileBackend, LeaseBackend
from holdfast.drills.env.nats import StreamBackend
from holdfast.drills.env.postgres import SchemaBackend
from holdfast.drills.permission import check_length
from holdfast.errors import BadInput
from holdfast.plane.process.components import make_state_directory
from holdfast.plane.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Deployment:
    """Built from loaded settings; `settings.sources.load` has refused invalid ones."""

    settings: Settings  # with the options of the command line

    @property
    def places(self) -> tuple[Backend, ...]:
        """The backends of state, messages and leases, without duplicates."""
        found = [_of_url("database", self.settings.database_url)]
        if self.settings.bus is not None:
            found.append(StreamBackend("bus", self.settings.bus))
        if self.settings.leases is not None:
            found.append(_of_url("leases", self.settings.leases))
        return tuple(found)

    @property
    def shown(self) -> str:
        """The backends as text."""
        return ", ".join(place.shown for place in self.places)

    @property
    def option(self) -> str:
        """The command-line option that names it."""
        return f"--config {shlex.quote(self.settings.file or 'FILE')}"

    @property
    def said(self) -> dict[str, object]:
        """The options of the command line, by key."""
        found = (key for key, origin in self.settings.origins.items() if origin.kind == "flag")
        return {key: self.settings.value(key) for key in found}

    def check_marked(self) -> None:
        """Return if drills may run here; otherwise raise `BadInput` that names the unmarked backends and the fix."""
        missing = [place for place in self.places if not place.is_marked()]
        if missing:
            told = " and ".join(f"{place.key} {place.shown}" for place in missing)
            verb = "is" if len(missing) == 1 else "are"
            raise BadInput(
                "--config",
                f"{told} {verb} not marked as a test deployment, and a drill disrupts its backends",
                f"if it is a test deployment, mark it: holdfast drill mark {self.option}; or omit --config to run "
                "the drill on its own plane",
            )

    def mark(self, seconds: float) -> None:
        """Allow drills here for so many seconds."""
        check_length(seconds)
        if self.settings.database is None:
            make_state_directory()
        for place in self.places:
            place.mark(seconds)

    def unmark(self) -> tuple[bool, list[str]]:
        """Disallow drills, and clear what killed drills have left. Returns whether they were allowed, and the rest."""
        swept = [name for place in self.places for name in place.sweep()]
        marked = [place for place in self.places if place.unmark()]
        return bool(marked), swept


def _of_url(key: str, url: str) -> Backend:
    scheme = url.partition("://")[0].lower().partition("+")[0]
    if scheme == "sqlite":
        return FileBackend(key, url)
    return SchemaBackend(key, url) if scheme in ("postgresql", "postgres") else LeaseBackend(key, url)
