"""A message that carries the lock and fence under which it was published, so that its receiver can refuse a stale one.

The envelope is one JSON object, and these are all of its members:

    {"key": "invoice:42", "fence": "1731672000000017", "message": "paid"}

The fence is text: readers of JSON that have no integers would round it. The message is text too, and the caller's own;
what has structure is serialised first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from holdfast.core.lease.fencing import parse_fence
from holdfast.errors import BadInput
from holdfast.guards.bearer import CarriedFence
from holdfast.types import check_key

_MEMBERS = {"key", "fence", "message"}


@dataclass(frozen=True, slots=True)
class GuardedMessage:
    """A published message. `carried` can be passed to any guard, like the lease of the publisher."""

    message: str
    carried: CarriedFence


def check_message(message: object) -> str:
    """Text that can travel in an envelope, or `BadInput`."""
    if not isinstance(message, str):
        raise BadInput("message", f"{type(message).__name__} is not text", "serialise it, for example with json.dumps")
    return message


def sealed(key: str, fence: int | None, message: str) -> bytes:
    """The envelope. A holder without a fence, where that is allowed, sends null, which receivers refuse by default."""
    shown = None if fence is None else str(fence)
    return json.dumps({"key": key, "fence": shown, "message": message}, separators=(",", ":")).encode()


def opened(data: str | bytes) -> GuardedMessage:
    """Read an envelope; `BadInput` for anything else. Checks its form, not whether it is stale."""
    fix = "publish through a guard; see holdfast.guards.redis.pubsub for the form"
    try:
        found = json.loads(data)
    except (TypeError, ValueError):  # not text, not JSON, not UTF-8
        raise BadInput("message", "is not an envelope of a guard", fix) from None
    except RecursionError:
        raise BadInput("message", "is nested too deeply", fix) from None
    if not isinstance(found, dict) or set(found) != _MEMBERS:
        raise BadInput("message", "is not an envelope of a guard", fix)
    fence = parse_fence("message", found["fence"])
    return GuardedMessage(check_message(found["message"]), CarriedFence(check_key("message", found["key"]), fence))
