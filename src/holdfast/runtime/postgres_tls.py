"""How Postgres on another host is spoken to when its URL does not say: with TLS, and only if it proves who it is.

By default, Postgres's own library takes TLS if the server offers it, without a check of its certificate, and plain text
otherwise: a man in the middle gets the password. On this machine, over a unix socket or the loopback interface, nothing
is changed; nor is anything where the URL, a service or the environment (`PGSSLMODE`) says what is wanted.
"""

from __future__ import annotations

import ipaddress
import os
from typing import Any, Final

from psycopg.conninfo import conninfo_to_dict

VERIFIED: Final = {"sslmode": "verify-full"}

_SAID: Final = ("PGSSLMODE", "PGSERVICE", "PGREQUIRESSL")


def tls_options(url: str) -> dict[str, Any]:
    """What to add to a URL that the library understands; nothing, where it is said or not needed."""
    given = conninfo_to_dict(url)
    if "sslmode" in given or "service" in given or any(map(os.environ.get, _SAID)):
        return {}
    places = given.get("hostaddr") or given.get("host") or os.environ.get("PGHOSTADDR") or os.environ.get("PGHOST")
    return {} if all(map(_is_here, str(places or "").split(","))) else dict(VERIFIED)


def _is_here(place: str) -> bool:
    """Whether only this machine can be at the other end. Empty: the library's own default, which is a unix socket."""
    if not place or place.startswith(("/", "@")):
        return True
    try:
        return ipaddress.ip_address(place).is_loopback
    except ValueError:
        return place.lower() == "localhost"
