"""Batches results: those that are ready at the same time share one message on the bus.

Where attempts are brief, the cost of a message is a good part of the cost of a job.

Promises: each result carries its own fence and is durable when `publish` returns. If a batch cannot be published, each
result is published alone, and its error is its own. `split` gives the messages that would have been published without
the batch, with the same ids. A result never waits for others: those that come while a batch is published form the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.core.ports import Entropy
from holdfast.errors import BadInput
from holdfast.guards.bearer import granted
from holdfast.plane.db.batcher import Batcher
from holdfast.plane.db.ports import Bus
from holdfast.plane.locks.registry import WORKER_JOB
from holdfast.plane.model.messages import RESULT
from holdfast.plane.model.records import Message, check_id, check_whole

BATCH_MAX: Final = 64
BATCH_CHARS: Final = 65_536  # of results: a batch must not be much longer than a single message may be

_ALL: Final = "results"
_FENCE: Final = "fence"


class _Result(NamedTuple):
    """A result to publish."""

    message: Message
    size: int  # in characters, about


class ResultBatcher:
    """Publishes the results of one worker. Belongs to one event loop."""

    def __init__(self, bus: Bus, entropy: Entropy, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._bus = bus
        self._entropy = entropy
        self._results: Batcher[_Result, None] = Batcher(self._publish)

    async def publish(self, message: Message, size: int) -> None:
        """Publish a result, together with the others that are ready now. Raises what the bus does."""
        if not self._enabled:
            await self._bus.publish([message])
            return
        await self._results.ask(_Result(message, size))

    async def _publish(self, results: Sequence[_Result]) -> Sequence[None]:
        await self._bus.publish([joined(each, self._entropy.token()) for each in _batches(results)])
        return [None] * len(results)


def _batches(results: Sequence[_Result]) -> Iterator[list[Message]]:
    """The results in groups, each of which fits into one message."""
    batch: list[Message] = []
    chars = 0
    for message, size in results:
        if batch and (len(batch) == BATCH_MAX or chars + size > BATCH_CHARS):
            yield batch
            batch, chars = [], 0
        batch.append(message)
        chars += size
    if batch:
        yield batch


def joined(results: Sequence[Message], token: str) -> Message:
    """One message with several results; a single one as it is. `token` makes its id unique."""
    if len(results) == 1:
        return results[0]
    said = [{**each.body, _FENCE: None if each.fence is None else each.fence.fence} for each in results]
    return Message(f"{RESULT}:together:{token}", RESULT, {_ALL: said})


def split(message: Message) -> list[Message]:
    """The results in a message, or `BadInput`."""
    if _ALL not in message.body:
        return [message]
    said = message.body[_ALL]
    if not isinstance(said, list) or not said or not all(isinstance(each, dict) for each in said):
        raise BadInput(_ALL, f"{message.id} has none", "say one or more, each a JSON object")
    return [_single(each) for each in said]


def _single(said: Mapping[str, Any]) -> Message:
    # The prefix of the plane does not matter: readers of a result check the rest of its key (`names`).
    job, attempt = check_id("job", said.get("job")), check_whole("attempt", said.get("attempt"), 0, 2**31)
    run = granted(WORKER_JOB.key(job=job), check_whole(_FENCE, said.get(_FENCE), 1, FENCE_MAX))  # both were checked
    body = {name: value for name, value in said.items() if name != _FENCE}
    return Message(f"{RESULT}:{job}:{attempt}:{run.fence}", RESULT, body, job, run)
