"""The fence in the headers of a message: the same two, in the same form, as in HTTP (`guards.http.headers`). Pure.

Buses disagree about what headers are. Read are mappings and lists of pairs, with names and values as text or bytes, so
those of NATS, Kafka, AMQP and the fields of a Redis stream entry. Written is a dict of text, which NATS and AMQP take
as it is; `byte_pairs` makes of it what Kafka takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from holdfast.errors import BadInput, Unfenced
from holdfast.guards.bearer import CarriedFence, Fenced
from holdfast.guards.http import headers as wire
from holdfast.leases.lease_base import Degraded, Granted, HeldLease

MESSAGE_ID_HEADER: Final = "Holdfast-Message-Id"

Headers: TypeAlias = Mapping[str, Any] | Mapping[bytes, Any] | Iterable[tuple[str | bytes, Any]]

_OURS: Final = {wire.KEY_HEADER.lower(): wire.KEY_HEADER, wire.FENCE_HEADER.lower(): wire.FENCE_HEADER}


def stamped(lease: Fenced, headers: Mapping[str, str] | None = None) -> dict[str, str]:
    """The headers, and the two that say under which lock and fence the message is sent.

    A lease that is lost raises `LeaseLost` here, before anything is sent; one without a fence `Unfenced`. Headers of
    these names that are there already are replaced, whatever their case: a message that is passed on carries the fence
    of who passes it on.
    """
    if isinstance(lease, Degraded) and lease.fence is None:
        raise Unfenced(f"the lease of {lease.key} is degraded and has no fence: its messages could not be refused")
    if not isinstance(lease, Granted | Degraded | CarriedFence):
        raise BadInput(
            "lease",
            f"{type(lease).__name__} is not a lease",
            "pass what acquire() returned; a fence that travelled here is a CarriedFence(key, fence)",
        )
    if isinstance(lease, HeldLease):
        lease.ensure_held()
    kept = {name: value for name, value in check_headers(headers).items() if name.lower() not in _OURS}
    return kept | wire.request_headers(lease.key, CarriedFence(lease.key, lease.fence).fence)


def byte_pairs(headers: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """The headers in the form that Kafka clients take."""
    return [(name, value.encode()) for name, value in headers.items()]


def carried_in(headers: Headers | None) -> CarriedFence | None:
    """The fence that a message brings; None: it brings none. `BadInput`, naming the header, if it makes no sense."""
    if type(headers) is dict:
        # As we write them ourselves, which is how nearly every message comes: read without a detour.
        key, fence = headers.get(wire.KEY_HEADER), headers.get(wire.FENCE_HEADER)
        if isinstance(key, str) and isinstance(fence, str) and key.isascii() and fence.isascii():
            ours = sum(not isinstance(name, str) or name.lower() in _OURS for name in headers)
            if ours == len(_OURS):  # none is there twice, in another case
                return CarriedFence(wire.decode_key(key.strip(" \t")), wire.decode_fence(fence.strip(" \t")))
    return wire.presented(list(_ours(headers)))


def check_headers(headers: object) -> dict[str, str]:
    """Headers to send, or `BadInput`."""
    fix = "give a dict of text and text"
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise BadInput("headers", f"{type(headers).__name__} cannot be sent as headers", fix)
    for name, value in headers.items():
        if not isinstance(name, str) or not name or not isinstance(value, str):
            raise BadInput("headers", f"{name!r} is not a header of text", fix)
    return dict(headers)


def _ours(headers: object) -> Iterator[tuple[bytes, bytes]]:
    """The headers that are ours, each as often as it was sent."""
    if headers is None:
        return
    if isinstance(headers, str | bytes) or not isinstance(headers, Iterable):
        raise BadInput("headers", f"{type(headers).__name__} has no headers in it", "give the message's own")
    for pair in headers.items() if isinstance(headers, Mapping) else headers:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise BadInput("headers", "has something in it that is no pair", "give pairs of name and value")
        raw, values = pair
        name = _OURS.get(raw.decode("latin-1").lower() if isinstance(raw, bytes) else str(raw).lower())
        if name is not None:
            for value in values if isinstance(values, list | tuple) else (values,):
                yield name.encode(), _bytes(name, value)


def _bytes(name: str, value: object) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise BadInput(name, f"is {type(value).__name__}", "send it as text or bytes")
