"""Cursors: where a page ended, as opaque text. Not a secret and not trusted: it says a place, and gives no rights."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Final

from holdfast.errors import BadInput
from holdfast.plane.model.paging import AFTER_ALL, LATEST_NS, Place

_TEXT_MAX: Final = 600


def cursor_of(kind: str, text: str, number: int) -> str:
    """The cursor for a place in a list of this kind."""
    return base64.urlsafe_b64encode(json.dumps([kind, text, number]).encode()).decode().rstrip("=")


def place_in(kind: str, cursor: str) -> tuple[str, int]:
    """The place that a cursor names, or `BadInput`: damaged, or of another list."""
    try:
        found = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_", validate=True))
        known, text, number = found
        right = known == kind and isinstance(text, str) and type(number) is int and 0 <= number <= LATEST_NS
        right = right and len(text) <= _TEXT_MAX and text.isprintable()
    except (ValueError, TypeError, RecursionError, binascii.Error):
        right, text, number = False, "", 0
    if not right:
        raise BadInput("cursor", "is not a place in this list", "pass on what the page before said, unchanged")
    return text, number


def after(kind: str, cursor: str | None) -> Place:
    """The place after which a list of jobs or letters goes on."""
    if cursor is None:
        return AFTER_ALL
    text, number = place_in(kind, cursor)
    return Place(number, text)


def next_of(kind: str, place: Place | None) -> str | None:
    """The cursor of the next page, if there is one."""
    return None if place is None else cursor_of(kind, place.id, place.at_ns)
