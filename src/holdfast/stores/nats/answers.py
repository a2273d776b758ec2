"""What the answers and errors of NATS mean. Pure, but for the names of the client's errors.

Promises: what cannot be read is no acknowledgement, so the request may have taken effect. An error of the client
becomes the error of ours that says what a caller may conclude from it.
"""

from __future__ import annotations

import json
import ssl
from typing import Final

import nats.errors
import nats.js.errors

from holdfast.errors import BadInput, HoldfastError, Misconfigured, Timeout, Unavailable
from holdfast.stores.tls_options import certificate_fix

_SHUT_OUT: Final = (nats.errors.AuthorizationError, nats.errors.InvalidUserCredentialsError)
_UNKNOWN_CA: Final = "give the CA that signed it (url option ssl_ca_certs of a lease store, or $SSL_CERT_FILE)"
_VIOLATION: Final = "authorization violation"  # the server's own words, which the client raises as an error of any kind


def check_stored(answer: bytes) -> None:
    """See that a server says it has stored a message. What cannot be read is no answer: it may be stored, or not."""
    try:
        found = json.loads(answer)
        refusal, place = found.get("error"), found.get("seq")
        if isinstance(refusal, dict):
            raise nats.js.errors.APIError.from_error({**refusal, "code": int(refusal.get("code") or 500)})
    except (ValueError, TypeError, AttributeError, RecursionError):
        refusal, place = None, None
    if refusal is not None or type(place) is not int:
        raise TimeoutError("it was answered with something that is no acknowledgement")


def translated(error: BaseException, shown: str) -> HoldfastError:
    """What an error of the client says."""
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    if isinstance(error, nats.errors.MaxPayloadError):
        return BadInput("body", f"is larger than {shown} takes", "make it smaller, or raise max_payload there")
    if isinstance(error, nats.js.errors.APIError):
        if error.code is not None and 400 <= int(error.code) < 500:
            return Misconfigured(f"{shown} refuses: {error.description}")
        return Unavailable(f"{shown} cannot do it now: {error.description}")
    if isinstance(error, _SHUT_OUT) or _VIOLATION in text.lower():
        return Misconfigured(f"{shown} does not let us in ({text})")
    if isinstance(error, nats.errors.SecureConnWantedError):
        return Misconfigured(f"{shown} does not offer TLS, so nothing was said to it; use nats://, or its TLS settings")
    if isinstance(error, ssl.SSLCertVerificationError):
        return Misconfigured(
            f"{shown} has a certificate that is not trusted ({error.verify_message}); "
            + certificate_fix(error.verify_message, _UNKNOWN_CA)
        )
    if isinstance(error, nats.errors.NoRespondersError):
        return Unavailable(f"{shown} has no responder: JetStream is off, or not ready")
    if isinstance(error, TimeoutError):
        return Timeout(f"{shown} did not answer in time ({text})")
    return Unavailable(f"{shown} cannot be reached ({text})")
