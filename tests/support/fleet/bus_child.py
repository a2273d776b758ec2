"""A process with a bus, for tests that end it: `bus_child.py '[database url, bus url, what to do]'`.

`hang`: take a message, say so, and never finish. `stage`: commit a staged message, and die immediately, before it
is relayed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

from holdfast.plane.bus.open import open_bus
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Consumption
from holdfast.plane.model.records import Delivery, Message
from holdfast.runtime.system import SystemClock, SystemEntropy
from holdfast.types import MS


async def dead(delivery: Delivery, reason: str, code: str) -> None:
    print(f"dead {delivery.message.id} {code} {reason}", flush=True)


async def main(database_url: str, bus_url: str | None, what: str) -> None:
    database = open_database(database_url)
    bus = open_bus(bus_url, database, SystemClock(), SystemEntropy(), dead=dead)
    await bus.prepare()

    async def handle(delivery: Delivery) -> None:
        print(f"took {delivery.message.id} {delivery.deliveries}", flush=True)
        await asyncio.Event().wait()

    if what == "stage":
        await database.write(lambda tx: bus.stage(tx, [Message("1", "job.submit", {"job": "1"})]))
        os.kill(os.getpid(), signal.SIGKILL)
    async with bus.consume(Consumption("job.submit", "scheduler", ack_wait_ns=500 * MS), handle):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*json.loads(sys.argv[1])))
