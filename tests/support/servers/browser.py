"""A plane with everything in a thread, and pages in a real Chromium that look at it. For tests of the status page."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import httpx
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page

from holdfast.cli.server.http_server import ApiPart
from holdfast.plane.app import App
from holdfast.plane.model.outcome import Fatal
from holdfast.plane.model.records import Job, Submission
from holdfast.plane.process.plane import PARTS, Plane
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.settings import ApiSettings, ReconcilerSettings, Settings, SnapshotSettings, WorkerSettings
from holdfast.plane.worker.context import Context
from holdfast.web.middleware.auth import Access

T = TypeVar("T")

CHROMIUM: Final = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS: Final = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
]
PATIENCE_MS: Final = 20_000
ME: Final = Caller("tester")
HOSTILE: Final = '<img src=x onerror="window.harmed=1"><script>window.harmed=1</script>'


class Running:
    """A plane with everything, in a thread with a loop of its own. It can be stopped, and started again as it was."""

    def __init__(self, folder: Path, access: Access | None = None, *, parts: tuple[str, ...] = PARTS) -> None:
        self.go = threading.Event()
        self._access = access or Access(open_to_all=True)
        self._parts = parts
        self._database = f"sqlite:///{folder / 'plane.db'}?synchronous=normal"
        self._port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()
        self.stop()

    def start(self) -> None:
        self._ready: Future[Plane] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="plane")
        self._thread.start()
        self.plane = self._ready.result(60)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join(60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the loop of the plane."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def submit(self, topic: str, payload: Any = None, **more: Any) -> Job:
        service = self.plane.components.service
        job, _ = self.run(service.submit(ME, Submission(topic, payload, **more)))
        return job

    def told(self, path: str) -> Any:
        """What the API says."""
        return httpx.get(f"{self.url}/api/v1{path}", trust_env=False).raise_for_status().json()

    def app(self) -> App:
        made = App("works")

        @made.job("double")
        async def double(payload: int) -> int:
            return 2 * payload

        @made.job("gate")
        async def gate(payload: Any) -> str:
            await asyncio.to_thread(self.go.wait, 60)
            return "through"

        @made.job("at_second")
        async def at_second(payload: Any, *, ctx: Context) -> None:
            if ctx.attempt == 1:
                raise RuntimeError("try again")

        @made.job("hostile")
        async def hostile(payload: Any, *, ctx: Context) -> None:
            ctx.emit([HOSTILE])
            raise Fatal(f"cannot do {HOSTILE}")

        return made

    async def _serve(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        api = ApiSettings(port=self._port)
        settings = Settings(
            database=self._database,
            api=api,
            worker=WorkerSettings(count=1, heartbeat=0.5, cancel_grace=0.5),
            snapshot=SnapshotSettings(interval=0.5),
            reconciler=ReconcilerSettings(interval=0.5),
        )
        try:
            ours = socket.create_server((api.host, api.port))
            self._port = ours.getsockname()[1]
            plane = Plane(settings, self._parts, app=self.app(), api=lambda plane: ApiPart(plane, ours, self._access))
            async with plane:
                self._ready.set_result(plane)
                await self._ending.wait()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise


@contextmanager
def opened(browser: Browser, url: str, *, expected: str | None = None, **context: Any) -> Iterator[Page]:
    """A page in a context of its own. Its console stays silent, but for lines in which the `expected` is found."""
    said: list[str] = []
    how = {"viewport": {"width": 1280, "height": 860}, "reduced_motion": "reduce", **context}
    made = browser.new_context(**how)
    made.set_default_timeout(PATIENCE_MS)
    page = made.new_page()

    def heard(message: ConsoleMessage) -> None:
        said.append(f"{message.type}: {message.text}")

    page.on("console", heard)
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.goto(url)
    try:
        yield page
        assert [line for line in said if expected is None or not re.search(expected, line)] == []
    finally:
        made.close()


def row(page: Page, job: Job) -> Locator:
    return page.locator(f'#job-rows tr[data-job="{job.id}"]')
