"""The files of a TLS connection, as options of a store's URL: `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`.

Promises: a file that is missing or is no certificate is found when the URL is read, and not in the first incident.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.errors import BadInput

TLS_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def client_context(options: Mapping[str, str]) -> ssl.SSLContext:
    """TLS that verifies the certificate and the host name, by the system's CAs or by the given one."""
    ca = _file(options, "ssl_ca_certs")
    certificate, key = _file(options, "ssl_certfile"), _file(options, "ssl_keyfile")
    if key and not certificate:
        raise BadInput("url option ssl_keyfile", "a key without its certificate", "give ssl_certfile too")
    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise BadInput(
            "url option ssl_ca_certs", f"{error.reason or 'unreadable'}", "give a file in PEM form"
        ) from error
    if certificate:
        try:
            context.load_cert_chain(certificate, key)
        except ssl.SSLError as error:
            raise BadInput(
                "url option ssl_certfile", f"{error.reason or 'unreadable'}", "give a matching pair in PEM form"
            ) from error
    return context


def certificate_fix(reason: str, unknown: str) -> str:
    """What to do about a server's certificate, by the reason of OpenSSL. `unknown`: the fix for an unknown signer."""
    if "expired" in reason:
        return "renew the certificate of the server"
    if "not yet valid" in reason:
        return "compare the clocks of this host and of the one that made the certificate"
    if "mismatch" in reason:
        return "connect by a name that the certificate contains, or add this one to it"
    return unknown


def _file(options: Mapping[str, str], name: str) -> str | None:
    path = options.get(name)
    if path is None:
        return None
    try:
        with Path(path).open("rb"):
            return path
    except (OSError, ValueError) as error:  # a ValueError is a name with a zero character
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"url option {name}", f"{path!r}: {reason}", "give a file that can be read") from error
