"""What every fence record must do, as a class of tests for each engine, and records of both colors behind one face."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.runtime.run_sync import run_now


class Opened:
    """A record in its own color: blocking ones are driven where they are called, others on a loop."""

    def __init__(self, record: Any, runner: asyncio.Runner | None) -> None:
        self.record, self.runner = record, runner

    def note(self, place: str, resource: str, fence: int) -> int:
        highest: int = self._drive(self.record.note(place, resource, fence))
        return highest

    def seen(self, place: str, resource: str) -> int | None:
        found: int | None = self._drive(self.record.seen(place, resource))
        return found

    def close(self) -> None:
        if hasattr(self.record, "aclose"):
            self._drive(self.record.aclose())
        else:
            self.record.close()
        if self.runner is not None:
            self.runner.close()

    def _drive(self, question: Coroutine[Any, Any, Any]) -> Any:
        return run_now(question) if self.runner is None else self.runner.run(question)


class RecordContract:
    """A subclass has a fixture `open_record`, which opens the same record each time that it is called."""

    def test_the_highest_fence_is_kept_and_returned(self, open_record: Callable[[], Opened]) -> None:
        record = open_record()
        assert record.seen("http", "a") is None
        for fence, highest in ((5, 5), (5, 5), (4, 5), (0, 5), (7, 7), (6, 7)):
            assert record.note("http", "a", fence) == highest
            assert record.seen("http", "a") == highest

    @pytest.mark.parametrize("fence", [0, 2**31, 2**53, 2**53 + 1, FENCE_MAX - 1, FENCE_MAX])
    def test_every_fence_is_kept_exactly(self, open_record: Callable[[], Opened], fence: int) -> None:
        record = open_record()
        assert record.note("http", "a", fence) == fence
        assert record.seen("http", "a") == fence

    def test_places_and_resources_do_not_mix(self, open_record: Callable[[], Opened]) -> None:
        record = open_record()
        names = [
            ("http", "a"),
            ("http", "A"),
            ("http", "a "),
            ("other", "a"),
            ("http", "zürich 🙂 '; --"),
            ("h", "ttpa"),
        ]
        for fence, (place, resource) in enumerate(names):
            assert record.note(place, resource, fence) == fence
        assert [record.seen(*name) for name in names] == list(range(len(names)))

    def test_what_was_noted_is_there_for_the_next_who_opens_the_record(self, open_record: Callable[[], Opened]) -> None:
        open_record().note("http", "a", 7)
        assert open_record().seen("http", "a") == 7
        assert open_record().note("http", "a", 6) == 7

    def test_many_concurrent_notes_agree_on_the_highest_and_none_returns_less_than_was_there(
        self,
        open_record: Callable[[], Opened],
    ) -> None:
        """They also all make the ledger at the same moment."""
        start = threading.Barrier(6)

        def work(number: int) -> list[int]:
            record = open_record()
            start.wait(30)
            answers = [record.note("http", "a", fence) for fence in range(number, 60, 6)]
            record.record.close() if record.runner is None else None
            return answers

        with ThreadPoolExecutor(6) as pool:
            told = list(pool.map(work, range(6)))
        for number, answers in enumerate(told):
            assert answers == sorted(answers)
            assert all(highest >= fence for highest, fence in zip(answers, range(number, 60, 6), strict=True))
        assert open_record().seen("http", "a") == 59

    def test_a_record_may_be_closed_and_used_again(self, open_record: Callable[[], Opened]) -> None:
        record = open_record()
        record.note("http", "a", 7)
        if hasattr(record.record, "aclose"):
            record._drive(record.record.aclose())
        else:
            record.record.close()
        assert record.seen("http", "a") == 7
