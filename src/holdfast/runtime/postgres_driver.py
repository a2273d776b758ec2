"""What leases, guards and the plane share to connect to Postgres: the error of a missing driver, and TLS by default.

psycopg and the library that it loads, libpq, are installed separately. By default, libpq uses TLS if the server offers
it, without a check of its certificate, and plain text otherwise: an attacker between them gets the password. So TLS
with a verified certificate is the default here, except on this machine (a unix socket or the loopback interface), and
except where the URL, a service or the environment (`PGSSLMODE`) sets something else. Clock: none.
"""

from __future__ import annotations

import ipaddress
import os
from typing import Any, Final

from holdfast.errors import Misconfigured

VERIFIED: Final = {"sslmode": "verify-full"}

_CONFIGURES_TLS: Final = ("PGSSLMODE", "PGSERVICE", "PGREQUIRESSL")
_DISTRIBUTIONS: Final = ("psycopg", "psycopg_pool")


def missing_driver(needed_by: str, error: ImportError) -> Misconfigured:
    """The error of an import of psycopg that failed, with the fix. Raises `error` again if another import failed."""
    name = (error.name or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError):
        if name not in _DISTRIBUTIONS:
            raise error
        return Misconfigured(
            f'{needed_by} needs a driver that is not installed ({name}): pip install "holdfast[postgres-binary]", '
            'or "holdfast[postgres]" where libpq is installed'
        )
    return Misconfigured(
        f"{needed_by} needs libpq, and psycopg cannot load it: "
        'pip install "holdfast[postgres-binary]", or install it (on Debian and Ubuntu: libpq5)'
    )


def tls_options(url: str) -> dict[str, Any]:
    """Options to add to a URL of libpq; none if TLS is configured already, or not needed."""
    from psycopg.conninfo import conninfo_to_dict  # a missing driver is reported elsewhere

    given = conninfo_to_dict(url)
    if "sslmode" in given or "service" in given or any(map(os.environ.get, _CONFIGURES_TLS)):
        return {}
    hosts = given.get("hostaddr") or given.get("host") or os.environ.get("PGHOSTADDR") or os.environ.get("PGHOST")
    return {} if all(map(_is_local, str(hosts or "").split(","))) else dict(VERIFIED)


def _is_local(host: str) -> bool:
    """Whether only this machine can be at the other end. Empty: the default of libpq, which is a unix socket."""
    if not host or host.startswith(("/", "@")):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
