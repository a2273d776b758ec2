"""Cursors of pages as opaque text. Not secret and not trusted: a cursor is a position and grants no rights."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Final

from holdfast.errors import BadInput
from holdfast.plane.model.paging import AFTER_ALL, LATEST_NS, Place

_TEXT_MAX: Final = 600


def cursor_of(kind: str, text: str, number: int) -> str:
    """The cursor of a position in a list of this kind."""
    return base64.urlsafe_b64encode(json.dumps([kind, text, number]).encode()).decode().rstrip("=")


def place_in(kind: str, cursor: str) -> tuple[str, int]:
    """The position in a cursor. `BadInput`: it is damaged, or belongs to another list."""
    try:
        found = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_", validate=True))
        known, text, number = found
        right = known == kind and isinstance(text, str) and type(number) is int and 0 <= number <= LATEST_NS
        right = right and len(text) <= _TEXT_MAX and text.isprintable()
    except (ValueError, TypeError, RecursionError, binascii.Error):
        right, text, number = False, "", 0
    if not right:
        raise BadInput("cursor", "is not a cursor of this list", "pass on the cursor of the page before, unchanged")
    return text, number


def after(kind: str, cursor: str | None) -> Place:
    """The position after which a page of jobs or letters starts."""
    if cursor is None:
        return AFTER_ALL
    text, number = place_in(kind, cursor)
    return Place(number, text)


def next_of(kind: str, place: Place | None) -> str | None:
    """The cursor of the next page, if there is one."""
    return None if place is None else cursor_of(kind, place.id, place.at_ns)
