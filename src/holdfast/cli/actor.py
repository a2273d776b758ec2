"""Who runs a command, for records: the user and the host."""

from __future__ import annotations

import getpass
import socket

from holdfast.cli.output.screen import printable


def actor() -> str:
    """The user at the shell, as `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        user = "somebody"
    return printable(f"{user}@{socket.gethostname()}")[:120]
