"""What an answer of Redis means to a guard: an outcome, or an error that tells the caller what it may conclude.

redis-py repeats requests that a broken connection lost, unless `retry` forbids it, and does not report that it did. So
`Unavailable` (certainly no effect) speaks about the last try; a client made with `retry=Retry(NoBackoff(), 0)` has only
that one. Where nothing was answered the error is `Timeout`: it may have taken effect, or may still. Texts never quote
arguments: a server may, and those are the caller's data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from holdfast.core.lease.fencing import Accepted, Outcome, Stale, Unregistered
from holdfast.errors import BackendError, Misconfigured, Timeout, Unavailable
from holdfast.guards.redis.driver import trouble as theirs

COMMANDS: Final = "+eval +evalsha +get +set +del +type +hset +hgetall +hdel +pexpire +publish"

_CANNOT_NOW: Final = frozenset(
    (
        "READONLY",
        "LOADING",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "BUSY",
        "OOM",
        "NOREPLICAS",
        "MISCONF",
        "UNKILLABLE",
    )
)
# redis-py takes the code off the text of the errors that it has a class for.
_CLASSES: Final[Sequence[tuple[type[Exception], str]]] = (
    (theirs.ReadOnlyError, "READONLY"),
    (theirs.BusyLoadingError, "LOADING"),
    (theirs.OutOfMemoryError, "OOM"),
    (theirs.MasterDownError, "MASTERDOWN"),
    (theirs.ClusterDownError, "CLUSTERDOWN"),
    (theirs.TryAgainError, "TRYAGAIN"),
    (theirs.NoPermissionError, "NOPERM"),
    (theirs.MovedError, "MOVED"),
    (theirs.AskError, "ASK"),
)
_IN_SCRIPT = re.compile(r"@?user_script: ?\d+: -?([A-Z]{2,}) ")  # before Redis 7 the code stands inside the text
_FORBIDDEN_IN_SCRIPT = re.compile(r"The user executing the script can't|ACL failure in script")  # without a code
_QUOTED_ARGUMENTS = re.compile(r",? with args beginning with.*", re.DOTALL)
_NEVER_SENT = ("Too many connections", "No connection available")  # the client's own pool is exhausted


def text(word: Any) -> str:
    """A word of a reply, which is bytes or text as the client was made."""
    return word.decode() if isinstance(word, bytes) else str(word)


def outcome(reply: Any, resource: str) -> Outcome[Sequence[Any]]:
    """What a script has answered. Raises `Misconfigured` for what no holder can write to."""
    match [text(reply[0]), *reply[1:]] if isinstance(reply, list) and reply else None:
        case ["ok", *rest]:
            return Accepted(rest)
        case ["stale", seen]:
            return Stale(int(text(seen)))
        case ["unregistered", seen]:
            return Unregistered(None if seen is None else int(text(seen)))
        case ["type", kind]:
            raise Misconfigured(
                f"{resource} holds a {text(kind)}, which is not what this writes or reads; nothing was changed. Use "
                "another key, or delete it first"
            )
        case ["unusable"]:
            raise Misconfigured(
                f"the fence of {resource} is not a number: something else has written there; nothing was changed. Set "
                "it to the highest fence of the lock, and use a prefix that is the guards' alone"
            )
    raise Timeout(f"redis sent an answer about {resource} that makes no sense; the step may have taken effect")


def explained(error: Exception, client: Any) -> BackendError:
    """The error of ours that an error of redis-py means."""
    code, text = _code(error), _QUOTED_ARGUMENTS.sub("", str(error)).strip()[:200]
    if code in _CANNOT_NOW:
        return Unavailable(f"redis cannot serve now: {code} {text.removeprefix(code).strip()}")
    if code == "NOPERM":
        return Misconfigured(
            f"redis: {text}; grant the user {COMMANDS}, the guarded keys, the keys of the prefix, and the channels"
        )
    if isinstance(error, theirs.AuthenticationError | theirs.AuthorizationError):
        return Misconfigured(f"redis refused the user of this client: {text}")
    if code in ("MOVED", "ASK"):
        return Misconfigured("redis is part of a cluster: make the guard with a RedisCluster client")
    if isinstance(error, theirs.SlotNotCoveredError):
        return Unavailable(f"redis: no server of the cluster has this hash slot now: {text}")
    if isinstance(error, theirs.ConnectionError | theirs.TimeoutError):
        return _unanswered(error, text, client)
    if isinstance(error, theirs.ClusterError | theirs.RedisClusterException):
        return Timeout(f"redis cluster: {text}; the step may have taken effect")
    if "Script killed" in text:
        return Unavailable(f"redis cannot serve now: {text}")
    return Misconfigured(f"redis refused the request: {text}")


def _unanswered(error: Exception, text: str, client: Any) -> BackendError:
    if isinstance(error, theirs.MaxConnectionsError) or text.startswith(_NEVER_SENT):
        return Unavailable(f"redis was not asked: all connections of the client are in use ({text})")
    if "max number of clients" in text:
        return Unavailable(f"redis cannot serve now: {text}")
    if "connecting to" in text:
        if _repeats(client):
            return Timeout(
                f"redis could not be reached ({text}); this client repeats lost requests, so an earlier try "
                "of this step may have taken effect"
            )
        return Unavailable(f"redis could not be reached: {text}")
    return Timeout(f"redis did not answer ({text}); the step may have taken effect")


def _repeats(client: Any) -> bool:
    """Whether an error may be that of a second try. Clients of a cluster always try again."""
    retry: Any = client.get_retry() if hasattr(client, "get_retry") else None
    return not hasattr(retry, "get_retries") or retry.get_retries() != 0


def _code(error: Exception) -> str:
    for kind, code in _CLASSES:
        if isinstance(error, kind):
            return code
    text = str(error)
    if _FORBIDDEN_IN_SCRIPT.search(text):
        return "NOPERM"
    inside = _IN_SCRIPT.search(text)
    return inside[1] if inside else text.partition(" ")[0]
