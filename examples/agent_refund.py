"""An agent with tools, a person who agrees, and a payment that happens once, whatever runs twice.

    python -m examples.agent_refund           # all of it in one process, with a boss who says yes

or as it is run in earnest, from the root of the repository, in two shells:

    holdfast up --app examples.agent_refund:app
    holdfast runs start refund --input '{"ticket": "T-7"}' --follow
    holdfast approvals list
    holdfast approvals approve RUN:agreed@1 --as boss

The model and the tools are stand-ins that always say the same. Everything else is what it would be: each call is a job
with a lease of its own, failed calls are tried again, and the payment is written behind a guard.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from examples.showing import LIMIT_S, approve_next, plane_at

import holdfast
from holdfast.guards.bearer import CarriedFence, carried
from holdfast.guards.install import install
from holdfast.guards.sqlite import GuardedTable
from holdfast.plane import App, BlockingContext, Client, Context, load_workflow

WORKFLOW: Final = Path(__file__).with_suffix(".yaml")
PLACE: Final = "REFUND_PLACE"  # the directory of the books, and of the leases in front of them

Seen: TypeAlias = Sequence[dict[str, Any]]

app: Final = App("refund")
app.include(load_workflow(WORKFLOW))


# The agent.


@app.job("agent.think")
async def think(ticket: str, about: Literal["plan", "judgement"], seen: Seen = ()) -> dict[str, Any]:
    """Ask the model. A real one is asked here; this one reads from a script."""
    if about == "plan":
        return {"calls": [{"tool": tool, "argument": ticket} for tool in _TOOLS]}
    order, delivery = seen
    return {"amount": order["price"], "why": f"{order['item']} was {delivery['state']}."}


@app.job("agent.tool", timeout=10)
async def use(tool: str, argument: str, *, ctx: Context) -> dict[str, Any]:
    """Call a tool by its name. One of them is down at first: the step, and nothing else, is tried again."""
    if tool == "deliveries" and ctx.attempt == 1:
        raise TimeoutError("the carrier does not answer")
    return _TOOLS[tool][argument]


_TOOLS: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "orders": {"T-7": {"item": "a lamp", "price": 120}, "T-8": {"item": "a bulb", "price": 9}},
    "deliveries": {"T-7": {"state": "broken on arrival"}, "T-8": {"state": "never delivered"}},
}


@app.job("support.ticket")
async def hand_over(ticket: str, text: str) -> str:
    """Leave it to people."""
    return f"{ticket}: {text}"


# The risky side effect.


@dataclass(frozen=True)
class Receipt:
    """What a payment returns."""

    receipt: str
    paid_before: bool = False


@app.job("bank.refund")
def refund(ticket: str, amount: int, *, ctx: BlockingContext) -> Receipt:
    """Pay, once for each ticket.

    A job may run twice: its worker was paused and another took over, or a client has submitted it again. The lock of
    the ticket admits one attempt at a time, and the section makes the books refuse earlier ones: their fence is older.
    """
    with (
        holdfast.connect(_leases()) as locks,
        closing(books()) as data,
        locks.lock(f"refund:{ticket}", ttl=30) as lease,
        refunds(data).section(lease, ticket) as row,
    ):
        if row.exists:
            return Receipt(row["receipt"], paid_before=True)
        paid = Receipt(f"receipt of {ctx.idempotency_key}")
        row.insert(amount=amount, receipt=paid.receipt)
        return paid


def refunds(data: sqlite3.Connection) -> GuardedTable[Any]:
    """The table of payments, held to the fence of the lock that its key names."""
    return GuardedTable(data, "refunds", id="ticket", key="refund:{ticket}")


def books() -> sqlite3.Connection:
    """The books. They are made when they are first opened."""
    data = sqlite3.connect(_directory() / "books.db", timeout=30)
    made = (
        "CREATE TABLE IF NOT EXISTS refunds (ticket TEXT PRIMARY KEY, amount INTEGER NOT NULL, receipt TEXT NOT NULL)"
    )
    data.execute(made)
    install(data, "refunds", id="ticket", trigger="strict")  # all other writers are refused, too
    data.commit()
    return data


def _leases() -> str:
    return f"sqlite:///{_directory() / 'leases.db'}"


def _directory() -> Path:
    return Path(os.environ.get(PLACE, "."))


# All of it, in one process.


async def show(directory: Path) -> list[str]:
    """Run it, then run the payment again, then let a paused attempt write. Returns the events, in lines."""
    os.environ[PLACE] = str(directory)
    async with plane_at(directory, app) as plane, Client(plane, name="ada") as ada, Client(plane, name="boss") as boss:
        run = await ada.start("refund", ticket="T-7")
        question = await approve_next(boss)
        output = await run.result(timeout=LIMIT_S)
        lines = [f"asked: {question}", f"{(await run.status()).status}: {output}"]

        # A client submits the payment again. It runs, and finds that it was paid.
        again = await ada.submit(refund, ticket="T-7", amount=120)
        lines.append(f"again: {await again.result(timeout=LIMIT_S)}")

        # A small refund needs no approval.
        small = await ada.start("refund", ticket="T-8")
        await small.result(timeout=LIMIT_S)
        lines.append(f"{(await small.status()).status}: no approval was needed")
    lines.append(f"late: {await asyncio.to_thread(_write_late)}")
    with closing(books()) as data:
        paid = data.execute("SELECT ticket, amount FROM refunds ORDER BY ticket").fetchall()
    return [*lines, f"paid: {paid}"]


def _write_late() -> str:
    """A holder of the lock was paused, and writes after the next holder."""
    with holdfast.connect(_leases()) as locks, closing(books()) as data:
        with locks.lock("refund:T-7", ttl=30) as lease:
            paused: CarriedFence = carried(lease)
        with locks.lock("refund:T-7", ttl=30) as lease, refunds(data).section(lease, "T-7"):
            pass
        try:
            refunds(data).update(paused, "T-7", {"amount": 240})
        except holdfast.FencedOut:
            return "refused"
        return "written"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        sys.stdout.write("\n".join(asyncio.run(show(Path(place)))) + "\n")
