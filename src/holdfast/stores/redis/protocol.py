"""What goes over the wire to Redis and what its answers mean, without sending anything: scripts, packing, and errors.

The protocol itself is spoken by hiredis (RESP2). This module says which error reply leads to which of ours, and keeps
every secret out of their texts: a server may quote the arguments of a command, and those hold tokens and passwords.
"""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import hiredis
from hiredis import ProtocolError, ReplyError, pack_command

from holdfast.errors import BackendError, FenceUnusable, Misconfigured, Timeout, Unavailable
from holdfast.runtime.connection_pool import ConnectionBroken
from holdfast.stores.redis.url import RedisAddress
from holdfast.stores.tls_options import certificate_fix

__all__ = ["ConnectionBroken", "ProtocolError", "RedisScript", "Reply", "ReplyError", "ReplyReader", "pack"]

Reply: TypeAlias = Any  # bytes, int, None, a list of these, or a `ReplyError`: its reader checks its type
Word: TypeAlias = str | bytes  # never an int, see `pack`

CLIENT_NAME = "holdfast"

# What an ACL user needs, for leases and for looking at and breaking them. A test runs with exactly these.
USER_COMMANDS = (
    "+eval +evalsha +get +set +del +exists +pexpire +pttl +time +type +publish +subscribe +unsubscribe "
    "+zadd +zrem +zrank +zrange +zscore +zpopmin +zrangebyscore +zremrangebyscore"
)
OPERATOR_COMMANDS = "+getrange +zcount +zcard +scan +xadd +xrevrange +ping"

_pack: Callable[[tuple[Word, ...]], bytes] = pack_command  # type: ignore[assignment]  # declared for one word, takes any


class GarbledReply(Timeout):
    """The answer makes no sense, and neither would anything that follows it on this connection."""


_HEADER_MAX: Final = {ord("*"): 6, ord("$"): 8}  # digits: a list of a million is no answer to anything that we ask
_LINE_MAX: Final = 65_536
_RESP2: Final = b"+-:$*"


class ReplyReader:
    """Reads replies of RESP2, and refuses any other, and one of impossible size, before anything is made of it.

    A list is made as long as its header says, and then waited for: a server that is none, or one gone mad, would take
    sixteen gigabytes with thirteen bytes. And hiredis knows RESP3 too, which is not requested here: its flags would
    pass for numbers, and its tables can have keys that are no keys of Python. So headers are checked beforehand.
    """

    __slots__ = ("_feed", "_head", "_skip", "gets", "has_data")

    def __init__(self) -> None:
        reader = hiredis.Reader()
        self._feed, self.gets, self.has_data = reader.feed, reader.gets, reader.has_data
        self._head = b""  # the beginning of a header whose end has not arrived
        self._skip = 0  # how much of a text has not arrived: no header stands in it

    def feed(self, data: bytes) -> None:
        """Take what has arrived, or raise `ProtocolError`."""
        seen, at = (self._head + data if self._head else data), self._skip
        self._head = b""
        while at < len(seen):
            end = seen.find(b"\r\n", at)
            kind = seen[at]
            most = _HEADER_MAX.get(kind, _LINE_MAX)
            if kind not in _RESP2:
                raise ProtocolError("a reply that is none of RESP2")
            if (end if end >= 0 else len(seen) - 1) - at - 1 > most:  # the last may be half of the line's end
                raise ProtocolError("a reply of impossible size")
            if end < 0:
                self._head = seen[at:]
                at = len(seen)
                break
            text = seen[at + 1 : end] if kind == 36 else b""  # 36 is "$"
            at = end + 2 + (int(text) + 2 if text.isdigit() else 0)
        self._skip = at - len(seen)
        self._feed(data)


def pack(words: Sequence[Word]) -> bytes:
    """One command as bytes.

    Numbers are converted by the caller. hiredis converts an int with `str()`, where the interpreter runs signal
    handlers, and does not check the result: a handler that raises there (Ctrl-C) would crash the process.
    """
    return _pack(tuple(words))


class RedisScript:
    """One Lua file, and those that stand in front of it. Called by its hash; sent whole to a server that lacks it."""

    __slots__ = ("body", "name", "sha")

    def __init__(self, name: str, *in_front: str) -> None:
        self.name = name
        self.body = b"".join((Path(__file__).parent / "lua" / f"{each}.lua").read_bytes() for each in (*in_front, name))
        self.sha = hashlib.sha1(self.body, usedforsecurity=False).hexdigest().encode()

    def by_hash(self, keys: int, words: Sequence[Word]) -> bytes:
        """Pack a call by hash. `words` are the keys, then the arguments."""
        return _pack((b"EVALSHA", self.sha, b"%d" % keys, *words))

    def whole(self, keys: int, words: Sequence[Word]) -> bytes:
        """Pack a call that brings the body along."""
        return _pack((b"EVAL", self.body, b"%d" % keys, *words))


def handshake(address: RedisAddress, account: Sequence[str]) -> tuple[bytes, int]:
    """The first bytes on a new connection, and how many replies they bring (see `check_handshake`).

    `account`: nothing, a password, or a user and a password (see `own_account`).
    """
    commands: list[bytes] = []
    if account:
        commands.append(pack(("AUTH", *account)))
    if address.db:
        commands.append(pack(("SELECT", str(address.db))))
    if address.service:
        commands.append(pack(("ROLE",)))
    commands.append(pack(("CLIENT", "SETNAME", CLIENT_NAME)))
    return b"".join(commands), len(commands)


def own_account(address: RedisAddress) -> Sequence[str]:
    """Who connects, as the arguments of AUTH."""
    if address.credentials is not None:
        try:
            return _account(address.credentials.get_credentials())
        except Exception as error:
            raise _no_credentials(address, error) from error
    if address.password is None:
        return ()
    return (address.password,) if address.username is None else (address.username, address.password)


async def own_account_async(address: RedisAddress) -> Sequence[str]:
    """The same, awaited."""
    if address.credentials is None:
        return own_account(address)
    try:
        return _account(await address.credentials.get_credentials_async())
    except Exception as error:
        raise _no_credentials(address, error) from error


def _account(given: object) -> Sequence[str]:
    parts = tuple(given) if isinstance(given, (tuple, list)) else ()
    if not 1 <= len(parts) <= 2 or not all(isinstance(part, str) for part in parts):
        raise TypeError("neither a password nor a user and a password")
    return parts


def _no_credentials(address: RedisAddress, error: Exception) -> Unavailable:
    # Its text is not shown: it may quote a secret.
    return Unavailable(f"redis at {address}: the credential provider failed ({type(error).__name__})")


def check_handshake(address: RedisAddress, replies: Sequence[Reply]) -> None:
    """Raise what a new connection was refused with. A user who may not set the connection's name is welcome anyway."""
    for reply in replies[:-1]:
        if isinstance(reply, ReplyError):
            raise refusal(reply, address)
    if address.service and not (isinstance(replies[-2], list) and replies[-2][:1] == [b"master"]):
        raise Unavailable(f"redis at {address} is not the primary {address.service!r} now: a failover is under way")
    last = replies[-1]
    if isinstance(last, ReplyError) and not _code(last) == "NOPERM":
        raise refusal(last, address)


_BUSY_SERVER: Final = frozenset(
    [
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
    ]
)
_IN_SCRIPT = re.compile(r"@?user_script: ?\d+: -?([A-Z]{2,}) ")
# Of a command within a script, Redis and Valkey report only that it was "called from script", in different words.
_UNKNOWN_COMMAND = re.compile(r"unknown (redis )?command (called from|[`'\"]?(?P<name>\w+))", re.IGNORECASE)
_QUOTED_ARGUMENTS = re.compile(r",? with args beginning with.*", re.DOTALL)


def refusal(error: ReplyError, address: RedisAddress, key: str | None = None) -> BackendError:
    """The error of ours that an error reply means, with the field and the fix. Never quotes arguments."""
    text = _QUOTED_ARGUMENTS.sub("", str(error)).strip()[:200]
    code = _code(error)
    where = f"redis at {address}"
    if code in _BUSY_SERVER:
        return Unavailable(f"{where} cannot serve now: {text}")
    if code in ("WRONGPASS", "NOAUTH") or "AUTH" in text:
        return Misconfigured(
            f"{where} refused the password of {_user(address)}: {code}; url user and password: give the ones that the "
            "server knows (redis://user:password@host), and none if it has none"
        )
    if code == "NOPERM":
        return Misconfigured(
            f"{where}: {text}; url user: grant {_user(address)} with ACL SETUSER ~{address.prefix}* "
            f"~{address.namespace}:* &{address.namespace}:ear:* {USER_COMMANDS}, and to operators {OPERATOR_COMMANDS}"
        )
    if (unknown := _UNKNOWN_COMMAND.search(text)) is not None:
        missing = unknown["name"]
        which = f"does not know the command {missing.upper()}" if missing else "does not know a command of a script"
        return Misconfigured(
            f"{where} {which}; server: remove its rename-command from the configuration (an ACL can keep other users "
            f"from it), or have a proxy in between pass it on; Holdfast needs {USER_COMMANDS.replace('+', '').upper()}"
        )
    if code in ("HFTYPE", "WRONGTYPE"):
        kind = text.partition(" ")[2].partition(" ")[0] if code == "HFTYPE" else ""
        kind = kind or "not a string"
        return Misconfigured(
            f"{where}: the key {key!r} holds other data ({kind}), not a lock; name: use another name, or a prefix"
        )
    if code == "HFFENCE":
        return FenceUnusable(
            f"{where}: the fence counter {address.namespace}:fence is not a usable number; "
            f"delete it (fences go on from the server's clock), or use another ?namespace="
        )
    if "DB index" in text or "SELECT is not allowed" in text:
        return Misconfigured(f"{where} has no database {address.db}; url db: use one that exists, 0 always does")
    if code in ("MOVED", "ASK", "CROSSSLOT"):
        return Misconfigured(f"{where} is part of a cluster; url: write redis+cluster:// instead")
    if "max number of clients" in text or "Script killed" in text:
        return Unavailable(f"{where} cannot serve now: {text}")
    return Misconfigured(f"{where} refused the request: {text}")


def keep_alive(end: Any) -> None:
    """Send written data immediately, and find out within a minute when the other end is gone."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds_or_count in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds_or_count)


def unreachable(address: RedisAddress, error: OSError | UnicodeError) -> BackendError:
    """What a failed connect means: mostly that the server is away, sometimes that the URL can never work."""
    if isinstance(error, UnicodeError):
        return Misconfigured(f"redis at {address}: no such name is possible; url host: give a valid one")
    if isinstance(error, ssl.SSLCertVerificationError):
        return Misconfigured(
            f"redis at {address}: its certificate is not trusted ({error.verify_message}); "
            + certificate_fix(error.verify_message, "url option ssl_ca_certs: give the CA that signed it")
        )
    if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return Misconfigured(f"redis at {address} does not speak TLS on this port; url: use redis://, or its TLS port")
    if isinstance(error, TimeoutError):
        # A server that takes our greeting for an unfinished command waits for the rest of it, without a word.
        hint = "" if address.tls is None else "; if its port is not for TLS, the url must begin with redis://"
        return Unavailable(f"redis at {address} could not be reached in time{hint}")
    return Unavailable(f"redis at {address} could not be reached: {error.strerror or type(error).__name__}")


def ungreeted(address: RedisAddress, error: Timeout) -> Unavailable:
    """What it means when a new connection gives no sensible answer: no request was sent on it, so none took effect."""
    if isinstance(error, ConnectionBroken):
        return Unavailable(f"redis at {address} closed the new connection")
    return Unavailable(f"redis at {address} did not answer the greeting, or is not a Redis server")


def is_demoted(reply: Reply) -> bool:
    """Whether the server is a replica now, and has changed nothing: leases are at another server."""
    return isinstance(reply, ReplyError) and _code(reply) == "READONLY"


def is_noscript(reply: Reply) -> bool:
    """Whether the server does not know a script (restart, failover, SCRIPT FLUSH): nothing was run."""
    return isinstance(reply, ReplyError) and str(reply).startswith("NOSCRIPT")


def forbids_scripts(reply: Reply) -> bool:
    """Whether the server will not run scripts at all for us: forbidden to the user, or the command is disabled."""
    if not isinstance(reply, ReplyError):
        return False
    text = str(reply).lower()
    return ("noperm" in text and "'eval" in text) or ("unknown command" in text and "eval" in text[:40])


def unknown_command(reply: Reply) -> bool:
    """Whether the server is too old for a command, or too new a syntax of one."""
    return isinstance(reply, ReplyError) and str(reply).lower().startswith(("err unknown command", "err syntax error"))


def garbled(address: RedisAddress, what: str) -> GarbledReply:
    """An answer that cannot be read is no answer: what it was the answer to may have taken effect."""
    return GarbledReply(f"redis at {address} sent an answer to {what} that makes no sense; it may have taken effect")


def _code(error: ReplyError) -> str:
    text = str(error)
    inside = _IN_SCRIPT.search(text)  # before Redis 7 the code of a failed call stands within the script's own error
    return inside[1] if inside else text.partition(" ")[0]


def _user(address: RedisAddress) -> str:
    return "the default user" if address.username is None else f"user {address.username!r}"
