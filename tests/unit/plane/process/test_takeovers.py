"""The promises of the settings about takeovers name everything that a takeover may wait for."""

from __future__ import annotations

import pytest

from holdfast.plane.bus.outbox import LATE_NS, POLL_NS
from holdfast.plane.db.ports import STANDSTILL_NS
from holdfast.plane.settings.consistency import problems, takeovers
from holdfast.plane.settings.settings import Settings
from holdfast.types import NS

STAGED = "a message that was stored in the outbox and not sent"
STANDSTILL = "rows that a stopped process had locked"
FLEET = Settings(database="postgresql://db/plane", bus="nats://bus:4222", leases="redis://leases:6379")


@pytest.mark.requires("R121")
def test_a_fleet_waits_for_what_was_staged_and_for_rows_that_were_locked_and_an_embedded_plane_does_not() -> None:
    bounds = {each.what: each.seconds for each in takeovers(FLEET)}
    assert bounds[STAGED] == (LATE_NS + POLL_NS) / NS == 7.0
    assert bounds[STANDSTILL] == STANDSTILL_NS / NS == 5.0
    assert not {STAGED, STANDSTILL} & {each.what for each in takeovers(Settings(database="sqlite:///plane.db"))}


@pytest.mark.requires("R116")
def test_a_promise_that_is_shorter_than_the_way_of_a_staged_message_is_refused() -> None:
    hasty = Settings(database=FLEET.database, bus=FLEET.bus, leases=FLEET.leases, takeover=6.0)
    assert any(f"{STAGED} is taken over after up to 7 s, not 6" in str(each) for each in problems(hasty))
    assert not any(STANDSTILL in str(each) for each in problems(hasty))
