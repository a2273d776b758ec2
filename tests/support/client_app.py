"""The app of the plane that the tests of clients use."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pydantic import BaseModel
from typing_extensions import TypedDict

from holdfast.plane import App, BlockingContext, Context, Fatal, Flow


@dataclass
class Receipt:
    """A result with a type."""

    invoice: int
    amount: int


class Address(TypedDict):
    """A parameter with a type."""

    city: str


class Order(BaseModel):
    """A payload with a type."""

    id: int
    tags: list[str] = []


app = App("clients")


@app.job("invoice.charge", timeout=30, retries=5)
async def charge(invoice: int, amount: int = 1, *, ctx: Context) -> Receipt:
    """Several parameters."""
    return Receipt(invoice, amount)


@app.job("parcel.send")
def send(to: Address, *, express: bool = False) -> str:
    """A blocking function."""
    return f"{to['city']} {express}"


@app.job("order.accept")
async def accept(order: Order) -> Order:
    """One typed parameter gets the whole payload."""
    return Order(id=order.id + 1, tags=[*order.tags, "accepted"])


@app.job("echo")
async def echo(payload: object, *, ctx: Context) -> object:
    """The signature of earlier versions."""
    return {"payload": payload, "labels": dict(ctx.labels), "tenant": ctx.tenant}


@app.job("hopeless", retries=0)
def hopeless(payload: object) -> None:
    """Fails for good."""
    raise Fatal("this will never work")


@app.job("invoice.lookup", retries=0)
def lookup(invoice: int) -> int:
    """Fails with an error that has a traceback."""
    return {8: 1}[invoice]


@app.job("story.tell", retries=1)
def tell(words: list[str], *, ctx: BlockingContext) -> int:
    """Emits each word; the first attempt fails after the first one."""
    for number, word in enumerate(words, 1):
        ctx.emit({"word": word})
        ctx.progress(fraction=number / len(words))
        if ctx.attempt == 1 and word == "fail":
            raise ValueError("told to fail")
    return len(words)


@app.job("sum.parts", retries=2)
async def sum_parts(numbers: list[int], *, ctx: Context) -> dict[str, object]:
    """A parent; its first attempt fails after it has submitted."""
    children = [await ctx.submit(charge, invoice=number, amount=number) for number in numbers]
    named = await ctx.submit("echo", {"by": ctx.job}, key="named")
    if ctx.attempt == 1:
        raise ValueError("after submitting")
    receipts = [await child.result(timeout=60) for child in children]
    echoed = await named.result(timeout=60)
    return {"sum": sum(each.amount for each in receipts), "tenant": echoed["tenant"], "ids": [c.id for c in children]}


@app.job("family.wait", timeout=60)
async def family_wait(payload: object, *, ctx: Context) -> None:
    """A parent that waits for children without end."""
    await ctx.submit("wait", None, key="attached")
    await ctx.submit("wait", None, key="detached", detached=True)
    ctx.progress("submitted")
    await asyncio.Event().wait()


@app.job("wait", timeout=60)
async def wait(payload: object, *, ctx: Context) -> None:
    """Reports progress, then runs until it is cancelled."""
    ctx.progress("waiting", 0.25)
    await asyncio.Event().wait()


@app.workflow("charge-twice", inputs={"invoice": "number"})
def charge_twice(flow: Flow) -> dict[str, str]:
    """A run with two jobs."""
    first = flow.job("first", topic="invoice.charge", input={"invoice": "${ input.invoice }", "amount": 1})
    second = flow.job("second", topic="invoice.charge", after=first, input={"invoice": "${ input.invoice }"})
    return {"amounts": "${ [steps.first.output.amount, steps.second.output.amount] }", "last": second.output}


@app.workflow("asks", inputs={"ticket": "text"})
def asks(flow: Flow) -> dict[str, str]:
    """A run that waits for a person."""
    agreed = flow.approval("agreed", message="Refund ${ input.ticket }?")
    flow.job("pay", topic="invoice.charge", after=agreed, input={"invoice": 1})
    return {"paid": "${ steps.pay.output.amount }"}
