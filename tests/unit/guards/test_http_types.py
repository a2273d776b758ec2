"""What a type checker knows about fenced clients: a lease is needed, and one without a fence only where allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.type_program import disagreements

ROOT = Path(__file__).parents[3]

# Each line that ends with "# error" must be refused by the checker, and no other.
PROGRAM = """
import httpx
import holdfast
from holdfast import aio
from holdfast.guards import CarriedFence
from holdfast.guards.http import FenceMiddleware, fence_of
from holdfast.guards.httpx import AsyncFencedTransport, FencedTransport
from holdfast.guards.records import SqliteRecord
from holdfast.guards.requests import FencedAdapter, fenced_session
from starlette.applications import Starlette
from starlette.requests import Request


def full(lease: holdfast.Lease, awaited: aio.Lease, fence: CarriedFence) -> None:
    for each in (lease, awaited, fence):
        FencedTransport(each, httpx.HTTPTransport(), min_remaining=2)
        AsyncFencedTransport(each, origins=["https://api.example.com"])
        FencedAdapter(each, max_retries=3)
        fenced_session(each).get("https://api.example.com")


def degraded(lease: holdfast.DegradedLease, awaited: aio.DegradedLease) -> None:
    FencedTransport(lease)  # error
    FencedTransport(awaited, allow_degraded=False)  # error
    AsyncFencedTransport(awaited)  # error
    FencedAdapter(lease)  # error
    fenced_session(lease)  # error
    FencedTransport(lease, allow_degraded=True)
    AsyncFencedTransport(awaited, allow_degraded=True)
    FencedAdapter(lease, allow_degraded=True)
    fenced_session(lease, allow_degraded=True)


def forgotten(lock: holdfast.Lock[holdfast.Lease]) -> None:
    FencedTransport()  # error
    FencedTransport(httpx.HTTPTransport())  # error
    FencedTransport(lock)  # error
    FencedTransport(lock.try_acquire())  # error
    AsyncFencedTransport(lock.acquire(), httpx.HTTPTransport())  # error
    fenced_session(7)  # error
    FencedTransport(lock.acquire(), min_remianing=2)  # error


def served(request: Request) -> CarriedFence:
    FenceMiddleware(Starlette(), SqliteRecord("fences.db"), key=lambda scope: None)
    Starlette().add_middleware(FenceMiddleware, record=SqliteRecord("fences.db"))
    FenceMiddleware(Starlette(), "fences.db")  # error
    FenceMiddleware(Starlette())  # error
    return fence_of(request)
"""


@pytest.mark.requires("R34")
def test_a_type_checker_refuses_leases_without_a_fence_where_they_are_not_allowed(tmp_path: Path) -> None:
    assert disagreements(PROGRAM, tmp_path) == ([], [])
