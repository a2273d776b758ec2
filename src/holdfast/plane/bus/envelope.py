"""A message as it is stored and sent, and back.

Promises: what comes out is what went in, the fence included; what cannot be read is distinguished from what can, never
guessed at. In a table a message is a row; on a wire it is one JSON document, with the fence and the id in headers (the
same headers as on every other road, `guards.http.headers`), so that servers and tools can see them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from holdfast.core.strict_parsers import WRAPPED_MAX
from holdfast.errors import BadInput
from holdfast.guards.bearer import CarriedFence
from holdfast.guards.http import headers as http_headers
from holdfast.guards.messaging import headers as message_headers
from holdfast.plane.db.ports import Row
from holdfast.plane.model.messages import groups_of
from holdfast.plane.model.records import MESSAGE_BYTES_MAX, PRIORITY_MAX, Message, check_text, check_whole, encoded

ID_CHARS_MAX: Final = 500
SUBJECT_CHARS_MAX: Final = 250
ID_HEADER: Final = "Nats-Msg-Id"

_SAFE: Final = "!#$&'()*+,-./:;<=>?@[]^_`{|}~"
_LATEST_NS: Final = 2**63 - 1
_text: Final = json.JSONEncoder().encode


class Unreadable(Exception):
    """What arrived is no message of ours."""


def check_subject(subject: object) -> tuple[str, ...]:
    """The groups that consume a subject, or `BadInput`."""
    name = check_text("subject", subject, SUBJECT_CHARS_MAX)
    try:
        return groups_of(name)
    except KeyError:
        raise BadInput("subject", f"{name!r} is not declared", "declare it in plane/model/messages.py") from None


def rows_of(messages: Sequence[Message], now_ns: int) -> list[dict[str, Any]]:
    """One row for each message and each group of its subject, or `BadInput`. No groups, no rows."""
    rows: list[dict[str, Any]] = []
    for message in messages:
        groups = check_subject(message.subject)
        if not groups:
            continue
        check_text("id", message.id, ID_CHARS_MAX)
        values = {
            "id": message.id,
            "subject": message.subject,
            "body": encoded("body", dict(message.body), MESSAGE_BYTES_MAX, WRAPPED_MAX),
            "message_key": message.key,
            "fence_key": None if message.fence is None else message.fence.key,
            "fence": None if message.fence is None else message.fence.fence,
            "priority": check_whole("priority", message.priority, -PRIORITY_MAX, PRIORITY_MAX),
            "not_before_ns": check_whole("not_before_ns", message.not_before_ns, 0, _LATEST_NS),
            "first_ns": now_ns,
        }
        rows += [{**values, "recipient": group} for group in groups]
    return rows


def message_of(row: Row) -> Message:
    """From a row to a message, or `Unreadable`."""
    try:
        fence = None if row["fence_key"] is None else CarriedFence(row["fence_key"], row["fence"])
        body = json.loads(row["body"])
    except (ValueError, TypeError, RecursionError) as error:  # `BadInput` is a ValueError
        raise Unreadable(str(error)) from error
    if not isinstance(body, dict):
        raise Unreadable("its body is not a JSON object")
    return Message(row["id"], row["subject"], body, row["message_key"], fence, row["priority"], row["not_before_ns"])


def unreadable_row(row: Row) -> Message:
    """What can be said of a row that cannot be read."""
    return Message(row["id"], row["subject"], {"raw": str(row["body"])}, row["message_key"])


def wire_of(row: Row) -> tuple[bytes, dict[str, str]]:
    """The document and the headers of a row for one group. The id is one for each group, as each gets a copy."""
    text = (
        f'{{"id":{_text(row["id"])},"subject":{_text(row["subject"])},"message_key":{_text(row["message_key"])},'
        f'"priority":{row["priority"]:d},"not_before_ns":{row["not_before_ns"]:d},"first_ns":{row["first_ns"]:d},'
        f'"body":{row["body"]}}}'
    )
    headers = {ID_HEADER: wire_id(row["id"], row["recipient"])}
    if row["fence_key"] is not None:
        headers |= http_headers.request_headers(row["fence_key"], row["fence"])
    return text.encode(), headers


def wire_id(identity: str, group: str) -> str:
    """The id under which a server knows the copy of a message for one group."""
    text = f"{group}/{identity}"
    return text if http_headers.AS_IT_IS.match(text) is not None else quote(text, safe=_SAFE)


def from_wire(data: bytes, headers: Mapping[str, str] | None) -> tuple[Message, int]:
    """The message in a document, and when it was first published; or `Unreadable`."""
    try:
        fence = message_headers.carried_in(headers)
        found = json.loads(data)
        message = Message(
            check_text("id", found["id"], ID_CHARS_MAX),
            check_text("subject", found["subject"], SUBJECT_CHARS_MAX),
            found["body"],
            found["message_key"],
            fence,
            check_whole("priority", found["priority"], -PRIORITY_MAX, PRIORITY_MAX),
            check_whole("not_before_ns", found["not_before_ns"], 0, _LATEST_NS),
        )
        first_ns = check_whole("first_ns", found["first_ns"], 0, _LATEST_NS)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error
    if not isinstance(message.body, dict) or not isinstance(message.key, str):
        raise Unreadable("its body is not a JSON object, or its key no text")
    return message, first_ns


def unreadable_wire(identity: str, subject: str, data: bytes) -> Message:
    """What can be said of a document that cannot be read."""
    return Message(identity, subject, {"raw": data.decode("utf-8", "replace").replace("\0", "�")})
