"""Two servers behind the HTTP guard that share one record: a stale fence is refused at either, and handed on inside."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from holdfast.errors import FencedOut
from holdfast.guards.httpx import FencedTransport
from holdfast.guards.settings import sql
from support.fixtures.guards import carried
from support.guards.subjects_http import ROW_ID, serving

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


def put(url: str, fence: int, total: int, query: str = "") -> int:
    transport = FencedTransport(carried(fence), httpx.HTTPTransport(verify=False))
    with httpx.Client(transport=transport, timeout=60) as client:
        return client.put(f"{url}/row{query}", content=str(total)).status_code


def stored(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "rows.db")) as connection:
        (total,) = connection.execute("SELECT total FROM invoices WHERE id = ?", (ROW_ID,)).fetchone()
        return int(total)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """One server that stands still inside its handlers, and one that does not."""
    with closing(sqlite3.connect(tmp_path / "rows.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY, total INTEGER, holdfast_fence INTEGER)")
        connection.execute("INSERT INTO invoices (id, total) VALUES (?, 0)", (ROW_ID,))
        connection.execute(sql("ledger_sqlite"))
    for pipe in ("inside", "go"):
        os.mkfifo(tmp_path / pipe)
    with ExitStack() as stack:
        pausing = stack.enter_context(serving("pausing rows", str(tmp_path)))
        yield pausing, stack.enter_context(serving("rows", str(tmp_path)))


@pytest.mark.requires("R34", "R47")
def test_a_fence_that_one_server_has_seen_is_refused_by_the_other(fleet: tuple[str, str], tmp_path: Path) -> None:
    pausing, plain = fleet
    assert put(plain, 2, 20) == 204
    with pytest.raises(FencedOut) as refused:
        put(pausing, 1, 10)
    assert (refused.value.fence, refused.value.seen) == (1, 2)
    assert stored(tmp_path) == 20


@pytest.mark.requires("R28", "R34", "R47", "R71")
@pytest.mark.parametrize("handed_on", [True, False], ids=["handed on", "not handed on"])
def test_a_request_that_is_slow_inside_one_server_is_refused_by_the_storage_if_the_fence_is_handed_on(
    fleet: tuple[str, str], tmp_path: Path, handed_on: bool
) -> None:
    """The record has admitted it long ago, so only the storage can tell; a handler that drops the fence loses."""
    pausing, plain = fleet
    query = "" if handed_on else "?unguarded"
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(put, pausing, 1, 10, query)
        assert (tmp_path / "inside").read_bytes() == b"1"
        assert put(plain, 2, 20, query) == 204
        (tmp_path / "go").write_bytes(b"1")
        if handed_on:
            with pytest.raises(FencedOut) as refused:
                slow.result(60)
            assert (refused.value.fence, refused.value.seen) == (1, 2)
        else:
            assert slow.result(60) == 204
    assert stored(tmp_path) == (20 if handed_on else 10)
