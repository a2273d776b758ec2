"""Whether an attempt is still wanted, as the database says."""

from __future__ import annotations

import pytest

from holdfast.core.jobs import JobState
from holdfast.plane.attempts import Attempts
from holdfast.plane.embedded_bus import EmbeddedBus
from holdfast.plane.jobstore import JobStore
from holdfast.plane.model import Submission
from holdfast.plane.ports import Database
from holdfast.plane.schema import prepare
from holdfast.runtime.system import SystemClock, SystemEntropy

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("attempt", [1, 2, 3])
async def test_an_attempt_is_outdated_when_its_job_is_over_or_at_a_later_one(
    database: Database, state: JobState, attempt: int
) -> None:
    await prepare(database)
    bus = EmbeddedBus(database, SystemClock(), SystemEntropy())
    await bus.prepare()
    await JobStore(database, bus, SystemClock(), SystemEntropy()).submit(Submission("t", id="j"), "default")
    statement = "UPDATE plane_job SET state = :state, attempt = 2 WHERE id = 'j'"
    await database.write(lambda tx: tx.query(statement, {"state": str(state)}))
    assert await Attempts(database).current("j", attempt) == (not state.terminal and attempt >= 2)
    await bus.close()


async def test_an_attempt_of_a_job_that_is_not_known_may_be_run(database: Database) -> None:
    await prepare(database)
    assert await Attempts(database).current("nobody", 1)
