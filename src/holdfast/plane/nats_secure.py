"""A client of NATS that keeps its word: with `tls://` nothing is said before the connection is encrypted and verified.

A NATS server speaks first, in plain text, and says whether it wants TLS; the library believes it. So whoever stands in
between, or a server that was set up without TLS, would be sent the password as it is. Here a server that offers TLS is
spoken to with TLS, also if it does not insist, and one that offers none is refused before anything was sent.
"""

from __future__ import annotations

from typing import Any

import nats.errors
from nats.aio.client import Client


class SecureClient(Client):
    """For `tls://`. Also for servers that it hears of later, whatever their addresses say."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Between the server's first word and our own: the library calls it there, also when it connects again."""
        if initial_connection:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise nats.errors.SecureConnWantedError
            info["tls_required"] = True  # what it offers is taken; the library looks at this next
        await super()._process_info(info, initial_connection=initial_connection)
