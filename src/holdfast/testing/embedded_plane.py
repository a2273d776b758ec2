"""A whole plane on one SQLite file, in a thread of this process, for tests.

Promises: jobs run as in production, with scheduler, worker and leases. When the block ends, the plane drains and its
thread has ended. Does not promise the HTTP API. Clock: that of the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from holdfast.plane.app import App
from holdfast.plane.client.blocking import BlockingClient
from holdfast.plane.client.client import Client
from holdfast.plane.process.plane import Plane
from holdfast.plane.settings.settings import Settings
from holdfast.testing.background import in_background


@contextmanager
def embedded_plane(app: App, file: Path) -> Iterator[BlockingClient]:
    """Run a plane with the workers of an app as long as the block runs. Yields a client of it."""
    url = f"sqlite:///{quote(str(file))}?synchronous=normal"
    with in_background(lambda: Plane(Settings(database=url, grace=5.0), app=app)), Client.blocking(url) as client:
        yield client
