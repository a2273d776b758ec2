"""Results of attempts that are ready at the same time: one message on the bus, and many again for the scheduler.

Where attempts are over at once, what a message costs is a good part of what a job costs; so a worker says what it has
to say in one. Promises: each result has its own fence with it, and is durable when `tell` returns; if it cannot be said
with the others it is said by itself, and its error is its own. Taken apart, each is the message that it would have
been, under the same id. Nobody waits for company: what comes while others are being said is in the next message.
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

TOGETHER_MAX: Final = 64
TOGETHER_CHARS: Final = 65_536  # of their results: a message of many must not be much longer than one may be

_ALL: Final = "results"
_FENCE: Final = "fence"


class Said(NamedTuple):
    """A result on its way."""

    message: Message
    size: int  # in characters, about


class ResultBatcher:
    """Where the attempts of a worker say their results. Belongs to one event loop."""

    def __init__(self, bus: Bus, entropy: Entropy) -> None:
        self._bus = bus
        self._entropy = entropy
        self._results: Batcher[Said, None] = Batcher(self._tell)

    async def tell(self, message: Message, size: int) -> None:
        """Publish a result, with whichever others are ready now. Raises what the bus does."""
        await self._results.ask(Said(message, size))

    async def _tell(self, said: Sequence[Said]) -> Sequence[None]:
        await self._bus.publish([together(each, self._entropy.token()) for each in _shares(said)])
        return [None] * len(said)


def _shares(said: Sequence[Said]) -> Iterator[list[Message]]:
    """The results in groups of which each fits into one message."""
    share: list[Message] = []
    chars = 0
    for message, size in said:
        if share and (len(share) == TOGETHER_MAX or chars + size > TOGETHER_CHARS):
            yield share
            share, chars = [], 0
        share.append(message)
        chars += size
    if share:
        yield share


def together(results: Sequence[Message], token: str) -> Message:
    """Results as one message; a single one as it is. `token` makes it another than all others for the bus."""
    if len(results) == 1:
        return results[0]
    said = [{**each.body, _FENCE: None if each.fence is None else each.fence.fence} for each in results]
    return Message(f"{RESULT}:together:{token}", RESULT, {_ALL: said})


def apart(message: Message) -> list[Message]:
    """The results in a message, or `BadInput`."""
    if _ALL not in message.body:
        return [message]
    said = message.body[_ALL]
    if not isinstance(said, list) or not said or not all(isinstance(each, dict) for each in said):
        raise BadInput(_ALL, f"{message.id} has none", "say one or more, each a JSON object")
    return [_single(each) for each in said]


def _single(said: Mapping[str, Any]) -> Message:
    # Which prefix the plane has does not matter: whoever reads a result looks at the rest of its key (`names`).
    job, attempt = check_id("job", said.get("job")), check_whole("attempt", said.get("attempt"), 0, 2**31)
    run = granted(WORKER_JOB.key(job=job), check_whole(_FENCE, said.get(_FENCE), 1, FENCE_MAX))  # both were checked
    body = {name: value for name, value in said.items() if name != _FENCE}
    return Message(f"{RESULT}:{job}:{attempt}:{run.fence}", RESULT, body, job, run)
