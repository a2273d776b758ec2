"""What failures of an etcd cluster mean: certainly no effect, perhaps an effect, or a setup that can never work."""

from __future__ import annotations

import json
import ssl
from typing import Final

from holdfast.errors import BackendError, Misconfigured, Timeout, Unavailable
from holdfast.stores.tls_options import certificate_fix
from holdfast.stores.url_parts import Endpoint

# Codes of gRPC.
_UNKNOWN, _INVALID, _DEADLINE, _NOT_FOUND, _DENIED, _EXHAUSTED = 2, 3, 4, 5, 7, 8
_PRECONDITION, _ABORTED, _UNIMPLEMENTED, _INTERNAL, _UNAVAILABLE, _UNAUTHENTICATED = 9, 10, 12, 13, 14, 16

# Answers that are given before anything is proposed to the cluster. Every other failure may have had an effect.
_NOT_PROPOSED: Final = ("no leader", "too many requests", "not capable", "learner", "mvcc: database space exceeded")
_OLD_TOKEN: Final = ("invalid auth token", "revision in header is old", "user name is empty")
_NOT_FOR_TLS: Final = "; if its port is not for TLS, write etcd://"
_SPACE: Final = "database space exceeded"


class EtcdConnectionBroken(Timeout):
    """The connection ended after a request was sent: it may have taken effect, and may be asked again."""


class LeaseGone(Unavailable):
    """The etcd lease that a key should end with has expired or is unknown. Nothing was changed."""


class TokenExpired(Unavailable):
    """The cluster does not accept the token of this session any more. Nothing was changed."""


class AuthDisabled(Unavailable):
    """The cluster has no authentication, so there is no session to open."""


def unreachable(endpoint: Endpoint, error: BaseException, *, tls: bool = False) -> BackendError:
    """What a connection that could not be opened means: mostly that a member is down.

    A port that is not for TLS ends the connection during the greeting, with or without an error of TLS.
    """
    found = _tls_error(error)
    if isinstance(found, ssl.SSLCertVerificationError):
        return Misconfigured(
            f"etcd at {endpoint}: its certificate is not trusted ({found.verify_message}); "
            + certificate_fix(found.verify_message, "url option ssl_ca_certs: give the CA that signed it")
        )
    if found is not None:
        return _tls_refused(endpoint, found)
    if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
        return Unavailable(f"etcd at {endpoint} could not be reached in time")
    if isinstance(error, UnicodeError):
        return Misconfigured(f"etcd at {endpoint}: no such name is possible; url host: give a valid one")
    cause = error.__cause__ or error
    reason = getattr(cause, "strerror", None) or str(cause) or "the connection was closed"
    hint = "" if isinstance(cause, ConnectionRefusedError) or not tls else _NOT_FOR_TLS
    return Unavailable(f"etcd at {endpoint} could not be reached: {reason}{hint}")


def broken(endpoint: Endpoint, error: BaseException, *, plain_and_new: bool = False) -> BackendError:
    """What a connection that ended after a request was sent means. A port for TLS ends a new one without a word."""
    found = _tls_error(error)
    if found is not None and "ALERT" in str(found.reason):
        return _tls_refused(endpoint, found)
    hint = "; if its port is for TLS, write etcds://" if plain_and_new else ""
    return EtcdConnectionBroken(
        f"etcd at {endpoint}: connection lost before the answer; it may have taken effect{hint}"
    )


def late(endpoint: Endpoint) -> Timeout:
    """The answer did not arrive in time."""
    return Timeout(f"etcd at {endpoint} did not answer in time; it may have taken effect")


def garbled(endpoint: Endpoint) -> Timeout:
    """An answer that cannot be read is no answer: what it was the answer to may have taken effect."""
    return Timeout(f"etcd at {endpoint} sent an answer that makes no sense; it may have taken effect")


def refusal(endpoint: Endpoint, user: str | None, status: int, body: bytes) -> BackendError:
    """The error of ours that an error of the gateway means, with the field and the fix."""
    code, text = _parsed(body)
    where, who = f"etcd at {endpoint}", "a client without a user" if user is None else f"user {user!r}"
    if code is None:
        return _not_the_gateway(where, status, text)
    if "requested lease not found" in text:
        return LeaseGone(f"{where}: {text}")
    if "authentication is not enabled" in text:
        return AuthDisabled(f"{where}: {text}")
    if any(each in text for each in _OLD_TOKEN):
        if user is None:
            return Misconfigured(f"{where} wants a user; url user and password: write etcd://user:password@host")
        return TokenExpired(f"{where}: {text}")
    if "authentication failed" in text:
        return Misconfigured(f"{where} refused the password of {who}; url user and password: give valid ones")
    if code == _DENIED:
        return Misconfigured(
            f"{where} does not let {who} do this ({text}); url user: grant what `holdfast access etcd` prints"
        )
    if _SPACE in text:
        return Unavailable(
            f"{where} has no space left and refuses writes; server: compact its history, then `etcdctl defrag` and "
            "`etcdctl alarm disarm`, and set --auto-compaction-retention"
        )
    if any(each in text for each in _NOT_PROPOSED):
        return Unavailable(f"{where} cannot serve now: {text}")
    if code in (_DEADLINE, _UNAVAILABLE, _INTERNAL, _UNKNOWN, _ABORTED, _EXHAUSTED):
        return Timeout(f"{where} gave no result ({text}); it may have taken effect")
    return Misconfigured(f"{where} refused the request: {text}")


def _not_the_gateway(where: str, status: int, text: str) -> BackendError:
    if "HTTPS server" in text:
        return Misconfigured(f"{where} wants TLS; url: use etcds://")
    if status >= 500:  # of a proxy in between
        return Timeout(f"{where} answered HTTP {status}; it may have taken effect")
    return Misconfigured(
        f"{where} answered HTTP {status}, not as etcd's gateway does; url: give a client URL of etcd 3.4 or newer, "
        "server: leave --enable-grpc-gateway on"
    )


def _parsed(body: bytes) -> tuple[int | None, str]:
    """The code and the text of an error; no code: it does not come from the gateway."""
    try:
        error = json.loads(body)
        return int(error["code"]), str(error.get("message") or error.get("error") or "")[:200]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, body[:200].decode(errors="replace").strip()


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _tls_refused(endpoint: Endpoint, error: ssl.SSLError) -> BackendError:
    reason = str(error.reason or error)
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return Misconfigured(f"etcd at {endpoint} does not speak TLS on this port; url: use etcd://, or its TLS port")
    if "ALERT" in reason:
        return Misconfigured(
            f"etcd at {endpoint} refused our certificate ({reason}); url options ssl_certfile and ssl_keyfile: give a "
            "certificate that its CA has signed"
        )
    return Unavailable(f"etcd at {endpoint} ended the greeting of TLS: {reason}{_NOT_FOR_TLS}")
