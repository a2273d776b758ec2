"""The least that each part of Holdfast needs of a server, as texts that the server itself understands.

Promises: what a text allows is enough for everything that the account is for (the tests run the product under it) and
nothing is allowed that is not needed, as far as the server's own rules can say it; where they cannot, docs/security.md
says so. No text holds a password: an account cannot be used before somebody gives it one. A text may be applied again,
and again after an upgrade, without locking anybody out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from holdfast.errors import BadInput
from holdfast.types import check_label

NAME: Final = "holdfast"

_TEXTS: Final = files("holdfast.ops.access") / "texts"


@dataclass(frozen=True, slots=True)
class AccessText:
    """What to give to a server, and whom it lets in."""

    store: str
    accounts: Mapping[str, str]  # what each is for
    text: str
    next: str  # what is left to be done by hand

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {"store": self.store, "accounts": dict(self.accounts), "text": self.text, "next": self.next}


def template(name: str) -> str:
    """A text as it is shipped, with the places that are to be filled."""
    return (_TEXTS / name).read_text(encoding="utf-8")


def check_account(name: object) -> str:
    """What the names of accounts begin with, or `BadInput`."""
    found = check_label("--name", name)
    if not found.replace("_", "a").replace("-", "a").isalnum() or not found.isascii() or len(found) > 40:
        raise BadInput("--name", f"{found!r:.60} cannot begin the names of accounts", "use letters, digits, _ and -")
    return found
