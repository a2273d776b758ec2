"""The names that the plane uses on a NATS server. Pure.

One stream holds everything. A message stands in it once for each group that gets it, under `<stream>.<group>.<subject>`
with what is not safe in a subject percent-encoded; so each group has a queue of its own, and a message stays until its
group has handled it, even without a consumer when it came.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import parse_qsl, quote

from holdfast.errors import BadInput

STREAM: Final = "HOLDFAST"

_SAFE: Final = "-_:@/+=,"  # besides letters, digits and dots
_STREAM: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_SLUG: Final = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class NatsNames:
    """All names follow from that of the stream."""

    stream: str

    def __post_init__(self) -> None:
        if _STREAM.match(self.stream) is None:
            raise BadInput("stream", f"{self.stream!r} is not a name", "use up to 64 letters, digits, _ and -")

    @property
    def everything(self) -> str:
        """The subjects of the stream."""
        return f"{self.stream}.>"

    def subject(self, group: str, subject: str) -> str:
        """Where the messages of a subject stand for a group."""
        return f"{self.stream}.{_place(group, subject)}"

    def durable(self, group: str, subject: str) -> str:
        """The consumer of a group for a subject. Readable, and unique by the hash at its end."""
        digest = hashlib.sha256(f"{group}\n{subject}".encode()).hexdigest()[:16]
        return f"{_SLUG.sub('-', group)[:40]}-{_SLUG.sub('-', subject)[:60]}-{digest}"

    def pull(self, durable: str) -> str:
        """Where a consumer's messages are requested."""
        return f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{durable}"


@lru_cache(maxsize=1024)
def _place(group: str, subject: str) -> str:
    return f"{_token(group)}.{_tokens(subject)}"


def _token(text: str) -> str:
    return quote(text, safe=_SAFE).replace(".", "%2E")


def _tokens(text: str) -> str:
    """The dots of a subject stay what separates its parts, unless a part would be empty."""
    parts = text.split(".")
    return ".".join(map(_token, parts)) if all(parts) else _token(text)


def stream_of(url: str) -> str:
    """The stream of a plane on NATS, as a URL names it that `open_bus` takes."""
    return dict(parse_qsl(url.partition("?")[2])).get("stream", STREAM)
