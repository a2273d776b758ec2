"""What a fence looks like in HTTP: two request headers, two response headers, and the problem answers. Pure.

    Holdfast-Key: invoice:42        request: the lock. UTF-8, percent-encoded: everything but visible ASCII, and % and ,
    Holdfast-Fence: 17              request: the fence, in plain decimal digits. Both headers, or none
    Holdfast-Fence: 17              response: the request was admitted under this fence, so a guard stands here
    Holdfast-Seen: 18               response: refused (412), for this fence was seen already

A comma never stands in either value, so that a header which was sent twice, and joined on the way, is found out.

The answers are RFC 9457 problems. A stale fence is 412 Precondition Failed: the fence is a condition that the client
put into its request, it was evaluated before the method, and it does not hold; 428 is its twin for a request that
should have brought one. It is not 409 Conflict, for that invites to try again, which some clients do by themselves. A
lease of another lock is 403 Forbidden: no state of the resource is in the way, and trying again can never help.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from holdfast.core.lease.fencing import parse_fence
from holdfast.errors import BadInput
from holdfast.guards.bearer import CarriedFence
from holdfast.types import check_key

KEY_HEADER: Final = "Holdfast-Key"
FENCE_HEADER: Final = "Holdfast-Fence"
SEEN_HEADER: Final = "Holdfast-Seen"

PROBLEM_TYPE: Final = "urn:holdfast:problem:"
PROBLEM_MEDIA_TYPE: Final = "application/problem+json"

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})  # RFC 9110: what is not meant to change anything

_NAMES: Final = {name.lower().encode("ascii"): name for name in (KEY_HEADER, FENCE_HEADER)}
_PLAIN: Final = "!#$&'()*+-./:;<=>?@[]^_`|~"  # besides letters and digits
AS_IT_IS: Final = re.compile(r"[A-Za-z0-9_.:/@=+-]+\Z", re.ASCII)  # what most names are made of: nothing to encode
_ENCODED: Final = re.compile(r"(?:[!-$&-+\--~]|%[0-9A-Fa-f]{2})+\Z", re.ASCII)  # visible, and neither % nor comma


def encode_key(key: str) -> str:
    """The name of a lock as a header value. Every name that `check_key` takes survives."""
    return key if AS_IT_IS.match(key) is not None else quote(key, safe=_PLAIN)


def decode_key(text: str) -> str:
    """The name of the lock in a header value, or `BadInput`."""
    if _ENCODED.match(text) is None:
        raise BadInput(
            KEY_HEADER, f"{_shown(text)} is not an encoded name", "percent-encode its UTF-8, commas and % included"
        )
    if "%" not in text:
        return check_key(KEY_HEADER, text)
    try:
        key = unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput(KEY_HEADER, f"{_shown(text)} is not UTF-8", "percent-encode the UTF-8 of the name") from None
    return check_key(KEY_HEADER, key)


def decode_fence(text: str) -> int:
    """The fence in a header value, or `BadInput`."""
    return parse_fence(FENCE_HEADER, text)


def request_headers(key: str, fence: int) -> dict[str, str]:
    """What a request under this fence carries."""
    return {KEY_HEADER: encode_key(key), FENCE_HEADER: str(fence)}


def presented(headers: Iterable[tuple[bytes, bytes]]) -> CarriedFence | None:
    """The fence that a request brings; None: it brings none. `BadInput`, naming the header, if it makes no sense."""
    found: dict[str, list[str]] = {KEY_HEADER: [], FENCE_HEADER: []}
    for raw_name, value in headers:
        name = _NAMES.get(raw_name.lower())
        if name is not None:
            found[name].append(value.decode("latin-1").strip(" \t"))
    keys, fences = found[KEY_HEADER], found[FENCE_HEADER]
    if not keys and not fences:
        return None
    for header, values in found.items():
        if not values:
            raise BadInput(header, "is missing", f"send {KEY_HEADER} and {FENCE_HEADER} together")
        if len(values) > 1:
            raise BadInput(header, f"was sent {len(values)} times", "send it once")
    return CarriedFence(decode_key(keys[0]), decode_fence(fences[0]))


@dataclass(frozen=True, slots=True)
class HeaderProblem:
    """One refusal, as it is answered. `members` are the extension members of the body."""

    status: int
    name: str
    title: str
    detail: str
    members: Mapping[str, str | int] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self, instance: str) -> bytes:
        """The document. `instance` is the path that was requested."""
        shown = {
            "type": PROBLEM_TYPE + self.name,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "instance": instance,
            **self.members,
        }
        return json.dumps(shown, ensure_ascii=False).encode()

    def response_headers(self, body: bytes) -> list[tuple[bytes, bytes]]:
        """The headers of the answer."""
        standard = {
            "content-type": PROBLEM_MEDIA_TYPE,
            "content-length": str(len(body)),
            "cache-control": "no-store",
        }
        merged = standard | {name.lower(): value for name, value in self.headers.items()}
        return [(name.encode("ascii"), value.encode("ascii")) for name, value in merged.items()]


def fenced_out(carried: CarriedFence, seen: int) -> HeaderProblem:
    """A newer holder was here."""
    return HeaderProblem(
        412,
        "fenced-out",
        "A newer fence was seen",
        f"The lease of {carried.key} with fence {carried.fence} has been superseded, for {seen} was seen. Nothing was "
        "done. Stop working under this lease.",
        {"key": carried.key, "fence": carried.fence, "seen": seen},
        {SEEN_HEADER: str(seen)},
    )


def fence_required() -> HeaderProblem:
    """The resource is written under a lease only."""
    return HeaderProblem(
        428,
        "fence-required",
        "A fence is required",
        f"Send the headers {KEY_HEADER} and {FENCE_HEADER} of the lease under which this is asked for.",
    )


def bad_header(error: BadInput) -> HeaderProblem:
    """What stands in the headers makes no sense."""
    return HeaderProblem(
        400,
        "bad-header",
        "A header cannot be understood",
        f"{error.field}: {error.problem}; {error.fix}.",
        {"header": error.field},
    )


def other_lock(carried: CarriedFence, wanted: str) -> HeaderProblem:
    """The lease is one of another lock."""
    return HeaderProblem(
        403,
        "other-lock",
        "The lease is of another lock",
        f"This belongs to the lock {wanted}, and fences of two locks do not compare.",
        {"key": carried.key, "fence": carried.fence, "expected": wanted},
    )


def record_unavailable(retry_after_s: int) -> HeaderProblem:
    """The record did not answer, so nothing can be said about the fence."""
    return HeaderProblem(
        503,
        "record-unavailable",
        "The fence cannot be checked now",
        "The record of fences is not available. Nothing was done.",
        headers={"Retry-After": str(retry_after_s)},
    )


def still_draining(carried: CarriedFence, retry_after_s: int) -> HeaderProblem:
    """An older holder's request is still being worked on."""
    return HeaderProblem(
        503,
        "still-draining",
        "A request of an older holder is still running",
        f"The fence {carried.fence} of {carried.key} is registered, so the older holder gets no further. Nothing was "
        "done for this request yet: repeat it.",
        {"key": carried.key, "fence": carried.fence},
        {"Retry-After": str(retry_after_s)},
    )


def _shown(text: str) -> str:
    shown = ascii(text)
    return shown if len(shown) <= 60 else shown[:57] + "…"
