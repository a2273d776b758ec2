"""One name, one lock: whatever two names look like, neither reaches what belongs to the other.

Names go into Redis keys and patterns, SQL, NATS subjects and consumers, and files. What a name becomes there must be
different for different names, and must never be something that the store keeps for itself.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.core.ports import Store
from holdfast.errors import BadInput
from holdfast.guards.files.names import check_file_name, draft_name, generation_name
from holdfast.guards.redis.fence_keys import PREFIX, FenceNames
from holdfast.plane.bus.envelope import check_subject
from holdfast.plane.bus.nats.naming import NatsNames
from holdfast.plane.model.messages import WORKERS
from holdfast.runtime.run_sync import run_now
from holdfast.stores.redis.engine import open_engine as open_redis
from holdfast.stores.registry import open_engine
from holdfast.types import KEY_BYTES_MAX, Grant, check_key
from support.harness.redis_requests import SOON, ask
from support.servers.redis import redis_executables, start_redis

pytestmark = pytest.mark.threat("X4")

LESS = settings(max_examples=settings().max_examples // 4)  # each is many questions to a server

HOSTILE = (
    *(
        "\r\n",
        "\0",
        "{}",
        "{a}",
        "*",
        "?",
        "[a]",
        "[^a]",
        "\\",
        "..",
        "/",
        "../",
        " ",
        "  ",
        "\u202e",
        "\u200b",
        "\ufeff",
    ),
    *(
        "\ud800",
        "\udfff",
        "'",
        '"',
        "';--",
        "%",
        "%2E",
        ".",
        ">",
        "#",
        ":",
        "::",
        "\x7f",
        "\x85",
        "a",
        "A",
        "é",
        "e\u0301",
    ),
    *(
        "holdfast:fence",
        "holdfast:audit",
        "holdfast:ears:",
        PREFIX,
        '["a","b"]',
        '#["a","b"]',
        ".holdfast.",
        ".fence",
        ".new",
    ),
)
NAMES = st.one_of(
    st.lists(st.sampled_from(HOSTILE), min_size=1, max_size=5).map("".join),
    st.text(min_size=1, max_size=12),
    st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=12),
    st.sampled_from(["x" * 65_536, "é" * KEY_BYTES_MAX, "x" * KEY_BYTES_MAX, "x" * (KEY_BYTES_MAX + 1)]),
)
PAIRS = st.lists(NAMES, min_size=2, max_size=6, unique=True)


def accepted(names: list[str]) -> list[str]:
    """Those that may be names of locks. The others are refused, and get no further."""
    kept = []
    for name in names:
        with contextlib.suppress(BadInput):
            kept.append(check_key("name", name))
    return kept


@given(PAIRS)
@example(["holdfast:fence", "holdfast:audit", 'holdfast:fence:["a","b"]', 'holdfast:fence:#["a","b"]'])
def test_no_two_names_share_a_key_of_redis_nor_reach_what_the_store_or_a_guard_keeps(names: list[str]) -> None:
    engine = open_redis("redis://127.0.0.1:1")
    store: Any = engine.blocking
    fences = FenceNames()
    own = {"holdfast:fence", "holdfast:audit"}
    own |= {fences.of_record(one, other).decode("utf-8", "surrogatepass") for one in "ab" for other in "ab"}
    own |= {fences.of_channel(one, other).decode() for one in "ab" for other in "ab"}
    used: list[str] = []
    for name in accepted(names):
        try:
            lock = store._lock(name)
        except BadInput:
            assert name.startswith(("holdfast:fence", "holdfast:audit"))
            continue
        used += [lock, store._hint_queue(lock), *store._queue(lock)]
    engine.close()
    assert len(set(used)) == len(used)
    assert not own & set(used)


@given(PAIRS)
@example(["a.b", "a%2Eb", "a..b", "a.", ".a", "*", ">", "a.*", "a b", "a\tb", "a"])
def test_no_two_names_share_a_subject_or_a_consumer_and_none_is_a_wildcard(names: list[str]) -> None:
    nats = NatsNames("S")
    subjects: set[str] = set()
    consumers: set[str] = set()
    kept = 0
    for name in names:
        subject = f"work.{name}"
        try:
            check_subject(subject)
        except BadInput:
            continue
        kept += 1
        made = nats.subject(WORKERS, subject)
        parts = made.split(".")
        assert parts[:2] == ["S", WORKERS]
        assert all(part and part.isascii() and part.isprintable() for part in parts), made
        assert not {"*", ">"} & set(parts)
        assert not set(made) & set(" \t\r\n*>")
        subjects.add(made)
        consumers.add(nats.durable(WORKERS, subject))
    assert len(subjects) == len(consumers) == kept
    assert all(each.isascii() and not set(each) & set(" .*>/\\\0") for each in consumers)


@given(PAIRS)
@example(["a", "a.fence", "a.new", ".holdfast.a", ".HOLDFAST.a.fence", "..", "../a", "a/b", "a\\b"])
def test_no_two_names_share_a_file_and_none_leads_out_of_the_folder(names: list[str]) -> None:
    files: list[str] = []
    for name in names:
        try:
            check_file_name(name)
        except BadInput:
            continue
        files += [name, generation_name(name), draft_name(name)]
    assert len(set(files)) == len(files)
    for each in files:
        assert os.path.basename(each) == each  # noqa: PTH119 - the question is about text
        assert each not in {".", ".."}
        assert len(os.fsencode(each)) <= 255


@pytest.fixture(scope="module", params=["memory", "sqlite", *map(str, redis_executables())])
def one_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store that no other test uses."""
    with ExitStack() as stack:
        if request.param == "memory":
            url = f"memory://{uuid.uuid4().hex}"
        elif request.param == "sqlite":
            url = f"sqlite:///{tmp_path_factory.mktemp('names')}/leases.db"
        else:
            (executable,) = (each for each in redis_executables() if str(each) == request.param)
            url = stack.enter_context(start_redis(executable)).url
        engine: Any = open_engine(url)
        stack.callback(engine.close)
        yield engine.blocking


@LESS
@given(names=PAIRS)
@example(names=["a", "A", "a*", "a?", "[a]", "a ", " a", "a\\", "a'; DROP TABLE holdfast_lease;--", "\u202ea"])
def test_what_is_done_to_one_lock_is_done_to_no_other(one_store: Store, names: list[str]) -> None:
    keys = accepted([name for name in names if not name.startswith("holdfast:")])
    run_now(_live(one_store, keys))


async def _live(store: Store, keys: list[str]) -> None:
    grants: dict[str, Grant] = {}
    for key in keys:
        granted = await store.acquire(ask(key), SOON)
        assert isinstance(granted, Grant), key
        grants[key] = granted
    for at, (key, grant) in enumerate(grants.items()):
        left = [*grants][at:]
        for prefix in {each[:2] for each in left}:
            found = {each.key for each in await store.holdings(prefix, 100, SOON)}
            assert found == {each for each in left if each.startswith(prefix)}
        if at % 2:
            assert await store.force_release(key, "ops", "a drill", SOON) is not None
        else:
            assert await store.release(key, grant.token, grant.claim, 0, SOON)
        assert await store.inspect(key, SOON) is None
    assert await store.holdings("", 100, SOON) == []


def test_what_the_store_keeps_for_itself_is_no_name_for_a_lock(tmp_path: Path) -> None:
    engine = open_redis("redis://127.0.0.1:1/0?namespace=own")
    for name in ("own:fence", "own:audit", 'own:fence:["place","thing"]', "own:fence:x"):
        with pytest.raises(BadInput, match="its own records"):
            run_now(engine.blocking.acquire(ask(name), SOON))
    engine.close()
