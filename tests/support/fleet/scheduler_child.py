"""A scheduler that gets into the middle of a handler and stays there, for tests that kill it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from holdfast.plane.process.plane import Plane
from holdfast.plane.settings.sources import load


async def main(folder: Path) -> None:
    async with Plane(load(folder / "holdfast.toml", environment={}), {"scheduler"}) as plane:

        async def change(*_: Any, **__: Any) -> Any:
            (folder / "inside").touch()
            await asyncio.Event().wait()

        plane.components.store.update = change  # type: ignore[method-assign]  # this is what the process is for
        (folder / "ready").touch()
        await plane.wait()


asyncio.run(main(Path(sys.argv[1])))
