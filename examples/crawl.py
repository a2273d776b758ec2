"""A crawl that fans out: many pages concurrently, each retried separately, and one request per host at a time.

    python -m examples.crawl

Two rounds: the pages that the run was given, then those that they link to. Each page is a job of its own, so pages are
spread over all workers, a page that fails is fetched again and no other, and a worker that dies costs one page. What
keeps the crawl polite is a lock for each host, which all workers of all processes share: a host is asked for one page
at a time, and the lock is kept for a while (`at_least`) even if the page came quickly, so that a host is not asked more
often than that, though a hundred of its pages wait.

The web is a stand-in that notices concurrent requests for two pages of a host.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from examples.showing import LIMIT_S, plane_at

import holdfast.aio
from holdfast.plane import App, Client, Context, Flow, retrying

PLACE: Final = "CRAWL_PLACE"  # the directory of the leases
EVERY_S: Final = 0.05  # how often a host may be asked

app: Final = App("crawl")


@app.workflow("crawl", description="Fetch pages and the pages that they link to", inputs={"urls": "list"})
def crawl(flow: Flow) -> dict[str, str]:
    """Two rounds, and what was found."""
    again = retrying(3, initial=0.05)
    first = flow.job(
        "first", topic="crawl.fetch", for_each="${ input.urls }", input="${ item }", max_parallel=4, retries=again
    )
    links = flow.job("links", topic="crawl.links", after=first, input=first.output)
    flow.job(
        "second",
        topic="crawl.fetch",
        after=links,
        for_each=links.output,
        input="${ item }",
        max_parallel=4,
        retries=again,
    )
    return {
        "titles": "${ [page.title for page in steps.first.output + steps.second.output] }",
        "attempts": "${ sum([page.attempt for page in steps.first.output + steps.second.output]) }",
    }


@app.job("crawl.links")
async def links(pages: list[dict[str, Any]]) -> list[str]:
    """Where pages link to, each address once."""
    return sorted({link for page in pages for link in page["links"]})


@app.job("crawl.fetch", timeout=30)
async def fetch(url: str, *, ctx: Context) -> dict[str, Any]:
    """Fetch one page, when it is its host's turn."""
    hosts = Path(os.environ.get(PLACE, ".")) / "hosts.db"
    async with (
        holdfast.aio.connect(f"sqlite:///{hosts}") as locks,
        locks.lock(f"crawl:host:{urlsplit(url).netloc}", ttl=10, at_least=EVERY_S),
    ):
        page = await web.get(url, ctx.attempt)
    return {"attempt": ctx.attempt, **page}


class Web:
    """A small web. It remembers which pages were asked for while their host was busy; some fail at first."""

    def __init__(self) -> None:
        self.rude: list[str] = []
        self._busy: set[str] = set()

    async def get(self, url: str, attempt: int) -> dict[str, Any]:
        """One page: its title, and where it links to."""
        host = urlsplit(url).netloc
        if host in self._busy:
            self.rude.append(url)
        self._busy.add(host)
        await asyncio.sleep(0.01)  # as long as a page takes
        self._busy.discard(host)
        if url.endswith("/shy") and attempt == 1:
            raise ConnectionResetError("not yet")
        name = url.partition("://")[2]
        links = [] if "/" in name else [f"{url}/{part}" for part in ("one", "two", "shy")]
        return {"title": f"about {name}", "links": links}


web: Final = Web()


async def show(directory: Path) -> list[str]:
    """Crawl two hosts. What happened, in lines."""
    os.environ[PLACE] = str(directory)
    async with plane_at(directory, app) as plane, Client(plane, name="ada") as client:
        run = await client.start("crawl", urls=["http://a.example", "http://b.example"])
        output = await run.result(timeout=LIMIT_S)
        status = (await run.status()).status
    titles = output["titles"]
    return [
        f"{status}: {len(titles)} pages in {output['attempts']} attempts",
        *sorted(titles),
        f"concurrent requests to one host: {web.rude}",
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        sys.stdout.write("\n".join(asyncio.run(show(Path(place)))) + "\n")
