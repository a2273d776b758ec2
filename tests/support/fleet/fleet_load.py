"""Clients of a fleet that go on asking while things break: each submission has a key, and is repeated until heard."""

from __future__ import annotations

import contextlib
import threading
import time
from types import TracebackType
from typing import Any, Self

import httpx

from support.fleet.fleet import LIMIT_S, Fleet


class Client:
    """A well-behaved client: it has a time limit, reconnects when a connection breaks, and repeats."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._line: httpx.Client | None = None
        self.repeats = 0  # how often a submission had to be sent again

    def submit(self, key: str, payload: dict[str, Any] | None = None, *, topic: str = "effect", **more: Any) -> str:
        """Submit a job, again and again until it is acknowledged. The job's id."""
        wanted = {"topic": topic, "payload": payload or {}, "max_attempts": 20, **more}
        end = time.monotonic() + LIMIT_S
        while (answer := self._ask("/jobs", wanted, {"idempotency-key": key})) is None:
            assert time.monotonic() < end, f"no server acknowledged {key}"
            self.repeats += 1
            time.sleep(0.05)  # a client that hammers an unavailable server helps no one
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["id"])

    def cancel(self, job: str) -> None:
        """Ask for the end of a job, until that is acknowledged."""
        end = time.monotonic() + LIMIT_S
        while self._ask(f"/jobs/{job}/cancel", {"reason": "the test wants it"}, {}) is None:
            assert time.monotonic() < end, f"no server accepted the cancellation of {job}"
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _ask(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> httpx.Response | None:
        """One try. None: no answer, or one that says that it may go better later."""
        api = self._fleet.api
        assert api is not None, "there is no API"
        with contextlib.suppress(httpx.TransportError, IndexError):  # not there yet, or no more
            base = f"{api.address}/api/v1"
            if self._line is None or str(self._line.base_url).rstrip("/") != base:
                self.close()
                self._line = httpx.Client(base_url=base, trust_env=False, timeout=10.0, verify=False)
            answer = self._line.post(path, json=body, headers=headers)
            return answer if answer.status_code < 500 else None
        self.close()
        return None


class Load:
    """Clients in threads for the length of the block. `acknowledged` has what was answered: key and job."""

    def __init__(
        self, fleet: Fleet, name: str, *, clients: int = 2, pause_s: float = 0.08, payload: dict[str, Any] | None = None
    ) -> None:
        self._fleet = fleet
        self._name = name
        self._pause_s = pause_s
        self._payload = payload or {}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(clients)]
        self._trouble: list[BaseException] = []
        self.acknowledged: dict[str, str] = {}
        self.repeats = 0

    @property
    def jobs(self) -> set[str]:
        """The jobs that were acknowledged."""
        return {*self.acknowledged.copy().values()}

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if error is None and self._trouble:
            raise self._trouble[0]

    def _run(self, number: int) -> None:
        made = 0
        with Client(self._fleet) as client:
            try:
                while not self._stop.wait(self._pause_s):
                    made += 1
                    key = f"{self._name}-{number}-{made}"
                    job = self.acknowledged[key] = client.submit(key, {**self._payload, "n": made})
                    if made % 7 == 0:  # a client that was not sure asks again, for the same answer
                        assert client.submit(key, {**self._payload, "n": made}) == job
            except BaseException as error:  # raised again where the block ends
                self._trouble.append(error)
            self.repeats += client.repeats
