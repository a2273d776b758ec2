"""A message in the outbox: what may be put in, and what a relay hands to the bus."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from holdfast.errors import BadInput
from holdfast.guards.http.headers import FENCE_HEADER, KEY_HEADER, request_headers
from holdfast.guards.messaging.headers import MESSAGE_ID_HEADER, check_headers

TOPIC_BYTES_MAX: Final = 512

_KEPT: Final = {name.lower() for name in (KEY_HEADER, FENCE_HEADER, MESSAGE_ID_HEADER)}


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    """One message on its way. `headers` are complete: the caller's, the lock, the fence, and the message's id.

    The id stays the same however often the message is sent, so that consumers can tell a repetition.
    """

    id: str
    key: str
    fence: int
    topic: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    attempts: int = 0  # before this one
    last_error: str | None = None


class OutboxDraft(NamedTuple):
    """What is to be put into the outbox, checked."""

    topic: str
    body: bytes
    headers: str  # JSON


def drafted(topic: object, body: object, headers: object) -> OutboxDraft:
    """What was given, as it is stored, or `BadInput`."""
    if not isinstance(topic, str) or not topic or not topic.isprintable():
        raise BadInput("topic", f"{topic!r} is not a topic", "give the name of a topic, subject or queue")
    if len(topic.encode()) > TOPIC_BYTES_MAX:
        raise BadInput("topic", "is too long", f"use at most {TOPIC_BYTES_MAX} bytes")
    checked = check_headers(headers)
    for name in checked:
        if name.lower() in _KEPT:
            raise BadInput("headers", f"{name!r} is set by the outbox", "leave it out")
    try:
        return OutboxDraft(topic, _content(body), json.dumps(checked, ensure_ascii=True))
    except UnicodeEncodeError as error:
        raise BadInput("body", f"cannot be sent as UTF-8 ({error.reason})", "encode it yourself") from None


def _content(body: object) -> bytes:
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise BadInput("body", f"{type(body).__name__} cannot be sent", "serialise it to bytes or text (sent as UTF-8)")


def message_of(row: Mapping[str, Any]) -> OutboxMessage:
    """A message as it stands in the table."""
    key, fence, message_id = row["key"], row["fence"], row["message_id"]
    own = {**request_headers(key, fence), MESSAGE_ID_HEADER: message_id}
    headers = {**json.loads(row["headers"]), **own}
    return OutboxMessage(
        message_id, key, fence, row["topic"], headers, bytes(row["body"]), row["attempts"], row["last_error"]
    )
