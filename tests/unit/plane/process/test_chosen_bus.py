"""A plane uses one bus: a process with another one is refused before it publishes a message."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import BadInput
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Submission
from holdfast.plane.process.components import open_components, switch_plane_bus
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.settings import Settings

ME = Caller("me")
NATS = "nats://user:secret@127.0.0.1:1?stream=MINE"  # nothing is there; it is refused before a connection


@pytest.fixture
def embedded(tmp_path: Path) -> Settings:
    return Settings(database=f"sqlite:///{tmp_path}/plane.db?synchronous=normal")


@pytest.mark.asyncio
@pytest.mark.parametrize("serving", [False, True], ids=["a command", "a process of the plane"])
async def test_whoever_names_another_bus_than_the_first_process_is_refused(embedded: Settings, serving: bool) -> None:
    async with open_components(embedded, serving=True):
        pass
    with pytest.raises(BadInput, match="speaks through the database, and here it would be NATS, in the stream MINE"):
        async with open_components(replace(embedded, bus=NATS), serving=serving):
            pass
    async with open_components(embedded, serving=serving):
        pass


@pytest.mark.asyncio
async def test_a_plane_that_has_had_no_process_refuses_nobody_and_commands_have_no_say(embedded: Settings) -> None:
    async with open_components(embedded) as components:
        await components.service.submit(ME, Submission("t"))
    assert await switch_plane_bus(replace(embedded, bus=NATS)) == (None, "NATS, in the stream MINE")


@pytest.mark.asyncio
async def test_another_name_of_the_server_is_the_same_bus_and_another_stream_is_not(embedded: Settings) -> None:
    await switch_plane_bus(replace(embedded, bus=NATS))
    assert (await switch_plane_bus(replace(embedded, bus="tls://other:4222,third:4222?replicas=3&stream=MINE")))[0] == (
        "NATS, in the stream MINE"
    )
    with pytest.raises(BadInput, match="in the stream MINE, and here it would be NATS, in the stream HOLDFAST"):
        async with open_components(replace(embedded, bus="nats://127.0.0.1:1")):
            pass


@pytest.mark.asyncio
async def test_whoever_only_looks_needs_no_bus(embedded: Settings) -> None:
    async with open_components(embedded) as components:
        job, _ = await components.service.submit(ME, Submission("t"))
    await switch_plane_bus(replace(embedded, bus=NATS))
    async with open_components(embedded, read_only=True) as components:
        assert (await components.service.job(ME, job.id)).state is JobState.PENDING
