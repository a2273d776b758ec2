"""A deployment that somebody has set up, as a drill sees it: its settings, and the places that they name.

Promises: a drill runs on it only if *each* of its places is marked as part of a test deployment, so that settings which
mix a test server with one that matters are refused.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from holdfast.drills.env.backends import FilePlace, LeasePlace, Place
from holdfast.drills.env.nats import StreamPlace
from holdfast.drills.env.postgres import SchemaPlace
from holdfast.drills.permission import check_length
from holdfast.errors import BadInput
from holdfast.plane.process.components import make_state_directory
from holdfast.plane.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Deployment:
    """Made by whoever has read the settings; `setting_sources.load` has refused what cannot work."""

    settings: Settings  # with what was said on the command line

    @property
    def places(self) -> tuple[Place, ...]:
        """Where its state, its messages and its leases are. One that stands for two is there once."""
        found = [_of_url("database", self.settings.database_url)]
        if self.settings.bus is not None:
            found.append(StreamPlace("bus", self.settings.bus))
        if self.settings.leases is not None:
            found.append(_of_url("leases", self.settings.leases))
        return tuple(found)

    @property
    def shown(self) -> str:
        """The places, for people."""
        return ", ".join(place.shown for place in self.places)

    @property
    def option(self) -> str:
        """The option that names it."""
        return f"--config {shlex.quote(self.settings.file or 'FILE')}"

    @property
    def said(self) -> dict[str, object]:
        """What was said on the command line, by key."""
        found = (key for key, origin in self.settings.origins.items() if origin.kind == "flag")
        return {key: self.settings.value(key) for key in found}

    def check_marked(self) -> None:
        """Return if drills may run here; `BadInput` that names what is not marked, and what to type, otherwise."""
        missing = [place for place in self.places if not place.is_marked()]
        if missing:
            told = " and ".join(f"{place.key} {place.shown}" for place in missing)
            verb = "is" if len(missing) == 1 else "are"
            raise BadInput(
                "--config",
                f"{told} {verb} not marked as a test deployment, and a drill breaks what it runs on",
                f"mark all of it if that is what it is: holdfast drill mark {self.option}; or leave out --config, and "
                "the drill uses a plane of its own",
            )

    def mark(self, seconds: float) -> None:
        """Say that drills may run here, for so long from now."""
        check_length(seconds)
        if self.settings.database is None:
            make_state_directory()
        for place in self.places:
            place.mark(seconds)

    def unmark(self) -> tuple[bool, list[str]]:
        """Say that they may not, and clear what drills that were killed have left: whether they might, and that."""
        swept = [name for place in self.places for name in place.sweep()]
        marked = [place for place in self.places if place.unmark()]
        return bool(marked), swept


def _of_url(key: str, url: str) -> Place:
    scheme = url.partition("://")[0].lower().partition("+")[0]
    if scheme == "sqlite":
        return FilePlace(key, url)
    return SchemaPlace(key, url) if scheme in ("postgresql", "postgres") else LeasePlace(key, url)
