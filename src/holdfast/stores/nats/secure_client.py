"""A NATS client for `tls://`: it sends nothing before the connection is encrypted and the server is verified.

A NATS server speaks first, in plain text, and states whether it wants TLS; the library believes it. Without this class,
a server without TLS, or an attacker in between, would receive the password in plain text. `SecureClient` uses TLS with
every server that offers it, even if the server does not require it, and refuses a server that does not offer TLS.

Promises: fails closed. `SecureClient` overrides private methods of nats-py, so it refuses (`Misconfigured`) to use
a version whose methods have another form. The command that carries the credentials is built only for an encrypted
connection, whatever the library did before.

Does not promise: protection on `nats://` URLs, which do not use this class.
"""

from __future__ import annotations

import inspect
from importlib.metadata import version
from typing import Any

import nats.errors
from nats.aio.client import Client

from holdfast.errors import Misconfigured


class SecureClient(Client):
    """For `tls://`. Applies to servers that it discovers later too, whatever their addresses say."""

    def __init__(self) -> None:
        found = (getattr(Client, "_process_info", None), getattr(Client, "_connect_command", None))
        if not (inspect.iscoroutinefunction(found[0]) and inspect.isfunction(found[1])):
            raise Misconfigured(
                f"tls:// cannot be enforced with nats-py {version('nats-py')}, so no connection was made; "
                'pip install "nats-py>=2.12,<3"'
            )
        super().__init__()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """The library calls this between the first message of the server and its own, on every (re)connection."""
        if initial_connection:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise nats.errors.SecureConnWantedError
            info["tls_required"] = True  # use TLS if it is offered; the library reads this next
        await super()._process_info(info, initial_connection=initial_connection)

    def _connect_command(self) -> bytes:
        """The library calls this for the text with the credentials, right before it sends it."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is None or writer.get_extra_info("ssl_object") is None:
            raise nats.errors.SecureConnWantedError
        return super()._connect_command()
