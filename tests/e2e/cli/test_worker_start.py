"""How `holdfast worker` starts: a signal ends it also while it waits for a store."""

from __future__ import annotations

import signal
import socket

import pytest

from support.cli.planes import furnish
from support.cli.sessions import LIMIT_S, Shell

LEASES = "sqlite:///plane.db"


@pytest.fixture
def furnished(shell: Shell) -> Shell:
    furnish(shell)
    return shell


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("words", [("worker", "works:app"), ("up",)], ids=" ".join)
def test_a_signal_is_heard_while_a_store_keeps_the_start_waiting(
    furnished: Shell, words: tuple[str, ...], number: signal.Signals
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        bus = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        silent.settimeout(LIMIT_S)
        process = furnished.start(*words, "--bus", bus, "--url" if words[0] == "worker" else "--leases", LEASES)
        with silent.accept()[0]:
            process.send_signal(number)
            assert furnished.finish(process).code == 128 + number
