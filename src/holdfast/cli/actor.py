"""The user of a command, for records: user and host."""

from __future__ import annotations

import getpass
import socket

from holdfast.cli.output.screen import printable


def actor() -> str:
    """The user at the shell, as `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        user = "unknown"
    return printable(f"{user}@{socket.gethostname()}")[:120]
