"""A caller waits for a lock while its `Locks` is closed."""

from __future__ import annotations

import threading

import holdfast

LIMIT_S = 20.0


def test_who_waits_for_a_lock_is_sent_away_when_the_locks_are_closed() -> None:
    """It is told, in whatever words."""
    locks = holdfast.connect("memory://")
    lease = locks.lock("k", ttl=30).acquire()
    outcome: list[object] = []

    def wait() -> None:
        try:
            outcome.append(locks.lock("k", ttl=30).acquire())
        except Exception as error:  # noqa: BLE001 - the class of the error is younger than the bug
            outcome.append(error)

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    looking = threading.Event()
    while locks.statistics().waiting < 1:
        looking.wait(0.001)
    locks.close()
    waiter.join(LIMIT_S)
    assert not waiter.is_alive(), "it waits for ever"
    assert isinstance(outcome[0], Exception), f"it was given {outcome[0]}"
    assert not lease.held
