"""Job functions in unit tests of users."""

from __future__ import annotations

import pytest

from holdfast import testing
from holdfast.errors import BadInput
from holdfast.plane import App, BlockingContext, Context, Fatal, Quarantine
from support.client_app import Order, Receipt, accept, app, charge, hopeless, send


def test_a_job_runs_with_a_payload_or_with_arguments_and_its_result_has_its_type() -> None:
    assert testing.run(app, "invoice.charge", {"invoice": 7, "amount": 100}) == Receipt(7, 100)
    assert testing.run(app, charge, invoice=7) == Receipt(7, 1)
    assert testing.run(app, accept, Order(id=1)) == Order(id=2, tags=["accepted"])
    assert testing.run(app, send, to={"city": "Rome"}) == "Rome False"
    assert testing.run(app, "echo", [1], labels={"a": "b"}, tenant="acme") == {
        "payload": [1],
        "labels": {"a": "b"},
        "tenant": "acme",
    }


def test_errors_of_a_function_are_raised_unchanged() -> None:
    with pytest.raises(Fatal, match="never work"):
        testing.run(app, hopeless, None)
    with pytest.raises(BadInput, match="invoice: is missing"):
        testing.run(app, "invoice.charge", {})


def test_a_result_that_cannot_be_stored_and_one_that_must_not_be_used_are_found() -> None:
    own = App("own")
    own.job("set")(lambda payload: {1, 2})
    own.job("doubtful", quarantine=lambda value: "it names a customer")(lambda payload: "Ada")
    with pytest.raises(BadInput, match="result"):
        testing.run(own, "set", None)
    with pytest.raises(Quarantine, match="it names a customer"):
        testing.run(own, "doubtful", None)


@pytest.mark.parametrize("job", ["unknown", len, charge])
def test_what_the_app_does_not_run_is_refused(job: object) -> None:
    with pytest.raises(BadInput, match="job"):
        testing.run(App("other"), job, None)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_a_context_has_a_real_lease_and_shows_the_progress() -> None:
    async with testing.context(job="j7", attempt=2, tenant="acme") as ctx:
        assert isinstance(ctx, Context)
        assert (ctx.job, ctx.attempt, ctx.tenant) == ("j7", 2, "acme")
        assert ctx.lease.held
        assert ctx.fence > 0
        ctx.progress("half", 0.5)
        assert (ctx.note, ctx.fraction) == ("half", 0.5)
        assert isinstance(ctx.blocking, BlockingContext)
        assert ctx.blocking.fence == ctx.fence
        ctx.emit({"page": 1})
        ctx.blocking.emit([2])
        assert ctx.emitted == [{"page": 1}, [2]]
        lease = ctx.lease
    assert not lease.held


@pytest.mark.asyncio
async def test_a_job_runs_inside_of_an_event_loop() -> None:
    assert await testing.run_async(app, charge, invoice=7, amount=2, attempt=3) == Receipt(7, 2)


def test_a_misspelled_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="rnu"):
        testing.rnu  # noqa: B018 - the access itself is tested
