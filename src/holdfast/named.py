"""What both colours of a lock have in common: its description, read. Nothing here waits or talks to a store."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from holdfast.description import Description
from holdfast.flows.acquiring import Wish
from holdfast.runtime.household import Household
from holdfast.types import NS


class Opened(Protocol):
    """Where a lock comes from, as far as this file needs to know."""

    def open_house(self) -> Household:
        """The household, if it is open; an error otherwise."""
        ...


class NamedLock:
    """A named lock: what can be known of it before anybody holds it."""

    __slots__ = ("_description",)

    def __init__(self, description: Description) -> None:
        self._description = description

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._description.wish.key

    @property
    def ttl(self) -> float:
        """How long the store keeps the key without a renewal, in seconds."""
        return self._description.wish.timing.ttl_ns / NS

    @property
    def family(self) -> str:
        """What kind of lock it is."""
        return self._description.wish.family

    @property
    def risk(self) -> str | None:
        """The risk class that decides what a store error means; None always fails closed."""
        return self._description.wish.risk

    def _wish(self, locks: Opened) -> Wish:
        """What to ask for, in the name of this process: a forked child is somebody else than its parent."""
        wish, owner = self._description.wish, locks.open_house().owner
        return wish if wish.owner is owner else replace(wish, owner=owner)

    def __repr__(self) -> str:
        return f"<Lock {self.name!r} ttl={self.ttl:g} family={self.family} risk={self.risk}>"
