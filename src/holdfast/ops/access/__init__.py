"""Least-privilege access rules for the servers that Holdfast uses, as texts that the servers understand.

Promises: a text allows everything that the account needs (the tests run the product under it) and nothing else, as far
as the rules of the server can express that. docs/security.md lists the cases where they cannot. No text contains a
password: an account is unusable until an operator sets one. A text may be applied again, for example after an upgrade,
without locking out an account.
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
    """A text for a server, and the accounts that it creates."""

    store: str
    accounts: Mapping[str, str]  # the purpose of each
    text: str
    next: str  # the remaining manual steps

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {"store": self.store, "accounts": dict(self.accounts), "text": self.text, "next": self.next}


def template(name: str) -> str:
    """A shipped text with placeholders."""
    return (_TEXTS / name).read_text(encoding="utf-8")


def check_account(name: object) -> str:
    """Return the prefix of account names, or raise `BadInput`."""
    found = check_label("--name", name)
    if not found.replace("_", "a").replace("-", "a").isalnum() or not found.isascii() or len(found) > 40:
        raise BadInput("--name", f"{found!r:.60} cannot be a prefix of account names", "use letters, digits, _ and -")
    return found
