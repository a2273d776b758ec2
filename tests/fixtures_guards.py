"""Leases of every kind that guards meet: full, degraded, lost, and carried from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from holdfast.guards import CarriedFence
from servers import free_port


def carried(fence: int, key: str = "invoice:42") -> CarriedFence:
    """A fence as it arrives from another process."""
    return CarriedFence(key, fence)


@pytest.fixture
def lease() -> Iterator[holdfast.Lease]:
    """A full lease of invoice:42."""
    with holdfast.connect("memory://") as locks:
        held = locks.lock("invoice:42", ttl=60).acquire()
        yield held
        held.release()


@pytest.fixture
def released(lease: holdfast.Lease) -> holdfast.Lease:
    """A lease whose holder has given it back."""
    lease.release()
    return lease


@pytest.fixture
def degraded() -> Iterator[holdfast.DegradedLease]:
    """A real one: the store is down, and the policy of the risk class is to go on."""
    with holdfast.connect(f"redis://127.0.0.1:{free_port()}", policy={"low": "fail_open"}) as locks:
        given = locks.lock("invoice:42", ttl=60, risk="low").acquire()
        assert isinstance(given, holdfast.DegradedLease)
        yield given
        given.release()
