"""What a case of a runbook consists of: facts by which a rule applies, and facts that are just not enough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.ops.runbooks import RUNBOOKS
from holdfast.ops.runbooks.evidence.locks import LockFact, LocksFact
from holdfast.ops.runbooks.evidence.metrics import MetricsFact
from holdfast.ops.runbooks.examples import held_lock, rates
from holdfast.ops.runbooks.model import Fact

Facts = Mapping[str, Fact | Exception]


class Told(NamedTuple):
    """Facts by which a rule applies, words that its sentence must have, and facts that are just not enough."""

    enough: Facts
    words: str
    short: Facts


def numbers(book: str, **found: Mapping[str, float]) -> MetricsFact:
    return rates(RUNBOOKS[book], **found)


LOOPS = LocksFact((held_lock("holdfast:reconciler:default"), held_lock("holdfast:replayer:pending")))
FREE_LOOP = LocksFact((LockFact("holdfast:reconciler:default", False), held_lock("holdfast:replayer:pending")))
