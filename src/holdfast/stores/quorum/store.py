"""`ports.Store` over several stores, of which a majority decides. See `stores.quorum.engine` for the promises.

The same for sync and asyncio: the nodes are stores of one kind, a runner asks them at the same time, and nothing else
here knows whether that blocks or suspends. It knows no engine either: the simulator runs it over simulated nodes.

An acquire asks one node first, the first in order that is healthy. If that is busy, so is the key, for the price of one
request; and of many concurrent callers one gets past it and the others leave its votes alone. Only then all are asked,
with the first node's fence as the least that will do. A node that is slow is not waited for: the next one is tried
after the time of the hedge. A key that stays busy is checked everywhere now and then: if it is free at a majority, a
vote was left at the first node, and one of the free nodes is asked first.

Votes that an acquire leaves at the nodes when it ends without an answer (`Timeout`, a cancellation) are released by the
caller, as with any other store. Votes of one that ends in `Busy` are released here; where that is not certain
yet, the answer says that its token is *spent*: a release that is late must not meet a new vote of the same token. And a
vote that comes when its lease is over is released when it comes (`late_replies`).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias

from holdfast.core.diagnosis import StoreFinding
from holdfast.core.lease.quorum import Tally, Verdict, settled, validity_ns, vote
from holdfast.core.ports import LISTEN_NS, Capabilities, Clock, Diagnosable, Store, Watch
from holdfast.errors import BackendError, Misconfigured, Timeout
from holdfast.stores.quorum.ballot import Afterwards, Answers, Ballot, failure, vote_of
from holdfast.stores.quorum.late_replies import QuorumMemory, TokenVotes
from holdfast.stores.quorum.merge import all_acts, all_findings, all_holdings, one_act, one_holding
from holdfast.stores.quorum.nodes import QuorumNodes, unanswered
from holdfast.stores.quorum.repair import CLEANUP_NS, Repair
from holdfast.types import AcquireRequest, AuditRecord, Busy, Grant, Holding, Renewal

Votes: TypeAlias = dict[int, Grant | Busy | BackendError]

ROUNDS_MAX = 4  # until a fence is settled; it takes one, or two while the nodes are busy with other keys


class QuorumStore:
    """A majority of stores, as one store."""

    def __init__(self, nodes: QuorumNodes, clock: Clock, capabilities: Capabilities, memory: QuorumMemory) -> None:
        """`memory`: shared by the stores of one engine."""
        self._nodes = nodes
        self._clock = clock
        self._capabilities = capabilities
        self._late = memory.late
        self._busy = memory.busy

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        return self._capabilities

    def __repr__(self) -> str:
        return f"<QuorumStore of {self._nodes.number} nodes>"

    # Acquire.

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        """See `ports.Store.acquire`. There is no queue: a ticket is ignored."""
        began = self._clock.now()
        deadline = began.mono + timeout_ns
        asked = ask._replace(ticket=None, ticket_ttl_ns=0, floor=0)
        votes: Votes = {}
        doubtful: set[int] = set()
        under_way = self._late.of(ask.token)
        under_way.over = False  # a token is used again only after its last attempt has certainly ended
        busy = await self._enter(asked, under_way, votes, doubtful, deadline)
        if busy is not None:
            return busy
        for _ in range(ROUNDS_MAX):
            busy = await self._vote(asked, under_way, votes, doubtful, deadline)
            if busy is not None:
                return busy
            fence = settled(_fences(votes), self._nodes.number)
            if fence is not None:
                break
        else:
            raise Timeout(f"acquire lock {ask.key}: the nodes did not settle on a fence in {ROUNDS_MAX} rounds")
        if validity_ns(ask.ttl_ns, began, self._clock.now()) <= 0:
            raise Timeout(f"acquire lock {ask.key}: a majority took longer than the lease may be trusted")
        self._busy.settled(ask.key)
        return Grant(ask.key, ask.token, fence, json.dumps([fence, ask.owner, ask.family]))

    async def _enter(
        self, ask: AcquireRequest, under_way: TokenVotes, votes: Votes, doubtful: set[int], deadline: int
    ) -> Busy | None:
        """Be granted the key by a first node. Adds answers to `votes`, and nodes without one to `doubtful`."""
        candidates = self._nodes.in_order()
        while True:  # ends with a grant, or when there is no other node to ask
            ballot = await self._ask_one(ask, under_way, candidates, deadline)
            votes.update(ballot.so_far())
            granted = any(isinstance(each, Grant) for each in votes.values())
            busy = next((each for each in votes.values() if isinstance(each, Busy)), None)
            candidates = [] if granted or busy is None else await self._free_elsewhere(ask, votes, deadline)
            if not granted and not candidates:
                under_way.over = True
            votes.update(ballot.close())
            doubtful.update(ballot.silent)
            if granted:
                return None
            if not candidates:
                return await self._busy_at_first(ask, busy, votes, doubtful, deadline)

    async def _free_elsewhere(self, ask: AcquireRequest, votes: Votes, deadline: int) -> list[int]:
        """Other nodes where the key is free, if it is free at a majority. None of them if it is not time to check."""
        if not self._busy.due(ask.key, self._nodes.now_ns()):
            return []
        need = self._nodes.need

        def enough(answers: Answers[Holding | None]) -> bool:
            free = sum(each is None for each in answers.values())
            return free >= need or len(answers) - free >= need or len(answers) == self._nodes.number

        answers = await self._nodes.ask_all(
            range(self._nodes.number), lambda store, limit: store.inspect(ask.key, limit), deadline, enough
        )
        free = [node for node in self._nodes.in_order() if node in answers and answers[node] is None]
        return [node for node in free if node not in votes] if len(free) >= need else []

    async def _ask_one(
        self, ask: AcquireRequest, under_way: TokenVotes, candidates: Iterable[int], deadline: int
    ) -> Ballot[Grant | Busy]:
        """Ask one node after the other until one answers, each next one when the last has failed or is slow."""
        nodes = self._nodes
        ballot: Ballot[Grant | Busy] = Ballot(nodes.runner.signal(), lambda _: True, self._settling(ask, under_way))
        waiting = list(candidates)
        try:
            while not any(isinstance(each, Grant | Busy) for each in ballot.so_far().values()):
                left = deadline - nodes.now_ns()
                if waiting and left > 0:
                    node = waiting.pop(0)
                    nodes.ask(ballot, node, lambda store, limit: store.acquire(ask, limit), deadline)
                    if not await ballot.signal.wait(min(nodes.hedge_ns, left)):
                        nodes.mark_slow(node)
                elif left <= 0 or not ballot.silent or not await ballot.signal.wait(left):
                    break
                ballot.signal.clear()
        except BaseException:
            nodes.abandon(ballot)
            raise
        return ballot

    async def _busy_at_first(
        self, ask: AcquireRequest, busy: Busy | None, votes: Votes, doubtful: set[int], deadline: int
    ) -> Busy:
        """No node has granted the key. Slower ones may still grant it."""
        if busy is None:
            raise self._nodes.failed(f"acquire lock {ask.key}", votes, harmless=True)
        certain = await self._release_votes(ask, votes, doubtful, deadline)
        return busy._replace(spent=not certain or bool(doubtful))

    def _settling(self, ask: AcquireRequest, under_way: TokenVotes) -> Afterwards[Grant | Busy]:
        """For each answer: release the vote if the lease is over by then. Else its release will find the vote."""

        async def settle(node: int, answer: Grant | Busy | BackendError) -> None:
            if under_way.over and isinstance(answer, Grant | Timeout):
                await self._nodes.stores[node].release(ask.key, ask.token, None, 0, CLEANUP_NS)

        return settle

    async def _vote(
        self, ask: AcquireRequest, under_way: TokenVotes, votes: Votes, doubtful: set[int], deadline: int
    ) -> Busy | None:
        """Ask every node that does not have the highest fence yet to have it. None: a majority has granted the key.

        `doubtful`: nodes that may have a vote of ours whatever they say now, because an earlier request is on its way.
        """
        nodes = self._nodes
        highest = max(_fences(votes))
        raised = ask._replace(floor=highest)
        have = {node: each for node, each in votes.items() if isinstance(each, Grant) and each.fence == highest}
        others = [node for node in range(nodes.number) if node not in have]

        async def acquire(store: Store, limit: int) -> Grant | Busy:
            answer = await store.acquire(raised, limit)
            if isinstance(answer, Grant) and answer.fence < highest:
                raise Misconfigured(f"{store!r} does not raise fences, and cannot be one of a quorum")
            return answer

        def tally(answers: Answers[Grant | Busy]) -> Tally:
            return Tally(nodes.number, (vote_of(each) for each in (*have.values(), *answers.values())))

        ballot = await nodes.open(
            others,
            acquire,
            deadline,
            lambda answers: tally(answers).verdict is not Verdict.PENDING,
            afterwards=self._settling(ask, under_way),
        )
        counted = tally(ballot.so_far())
        won = counted.verdict is Verdict.WON
        outvoted = not won and counted.quorate and counted.no > 0
        if outvoted:
            under_way.over = True
        answers = ballot.close()
        for node in others:
            answer = answers.get(node, unanswered(node))
            if isinstance(votes.get(node), Grant | Timeout):
                doubtful.add(node)
            votes[node] = answer
        if outvoted:
            doubtful.update(ballot.silent)
            return await self._outvoted(ask, votes, doubtful, deadline)
        if not won:
            raise nodes.failed(f"acquire lock {ask.key}", votes, harmless=False)
        return None

    async def _outvoted(self, ask: AcquireRequest, votes: Votes, doubtful: set[int], deadline: int) -> Busy:
        """Other callers have too many votes. Ours are released before the caller is told, so that they block none."""
        certain = await self._release_votes(ask, votes, doubtful, deadline)
        refusals = [each for each in votes.values() if isinstance(each, Busy)]
        owners = [each.owner for each in refusals]
        shown = max(refusals, key=lambda each: owners.count(each.owner))
        return shown._replace(spent=not certain or bool(doubtful))

    async def _release_votes(
        self, ask: AcquireRequest, votes: Answers[Grant | Busy], doubtful: set[int], deadline: int
    ) -> bool:
        """Release every vote that we have or may have. False: not all of it is certain.

        Each request has its own time limit; the caller waits for the answers until its deadline at most.
        """
        ours = [node for node, each in votes.items() if isinstance(each, Grant | Timeout) or node in doubtful]
        granted = [node for node in ours if isinstance(votes[node], Grant)]
        if not ours:
            return True

        def release(store: Store, limit: int) -> Awaitable[bool]:
            return store.release(ask.key, ask.token, None, 0, limit)

        # Nodes that have answered are waited for. The others are asked to release, and not waited for.
        until = self._nodes.now_ns() + CLEANUP_NS
        ballot = await self._nodes.open(
            ours,
            release,
            until,
            lambda answers: all(node in answers for node in granted),
            wait_until=min(until, deadline),
        )
        answers = ballot.close()
        # "Not there" settles nothing where the request to take it may still be on its way.
        return all(answers.get(node) is True for node in ours)

    # Renew and release.

    async def renew_many(self, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        """See `ports.Store.renew_many`. Raises when no lease got an answer from a majority.

        Then single nodes that differ are repaired (`repair`).
        """
        if not renewals:
            return []
        # From here on, so that a lease released before the decision is not taken again afterwards.
        leases = [(each, self._late.of(each.token)) for each in renewals]
        nodes = self._nodes
        bare = [each._replace(claim="") for each in renewals]

        def verdicts(answers: Answers[list[bool | None]]) -> list[Verdict]:
            return [self._renewed(answers, number) for number in range(len(bare))]

        ballot = await nodes.open(
            range(nodes.number),
            lambda store, limit: store.renew_many(bare, limit),
            nodes.now_ns() + timeout_ns,
            lambda answers: len(answers) >= nodes.need and Verdict.PENDING not in verdicts(answers),
        )
        decided = verdicts(ballot.so_far())
        repair = Repair(nodes.stores, leases, decided)
        answers = ballot.close(repair.at)
        for node, answer in answers.items():
            if not repair.agrees(answer):
                nodes.runner.start(node, repair.at(node, answer))
        if not any(verdict in (Verdict.WON, Verdict.LOST) for verdict in decided):
            raise nodes.failed("renew locks", answers, harmless=False)
        return [_MEANING.get(verdict) for verdict in decided]

    def _renewed(self, answers: Answers[list[bool | None]], number: int) -> Verdict:
        votes = (failure(each) if isinstance(each, BackendError) else vote(each[number]) for each in answers.values())
        return Tally(self._nodes.number, votes).verdict

    async def release(self, key: str, token: str, claim: str | None, keep_ns: int, timeout_ns: int) -> bool:
        """See `ports.Store.release`. Every node is asked, and a majority is waited for."""
        self._late.over(token)
        answers = await self._majority(lambda store, limit: store.release(key, token, None, keep_ns, limit), timeout_ns)
        released = _MEANING.get(self._verdict(answers))
        if released is None:
            raise self._nodes.failed(f"release lock {key}", answers, harmless=False)
        return released

    async def _majority(self, call: Callable[[Store, int], Awaitable[bool]], timeout_ns: int) -> Answers[bool]:
        nodes = self._nodes
        return await nodes.ask_all(
            range(nodes.number),
            call,
            nodes.now_ns() + timeout_ns,
            lambda answers: self._verdict(answers) is not Verdict.PENDING,
        )

    def _verdict(self, answers: Answers[bool]) -> Verdict:
        votes = (failure(each) if isinstance(each, BackendError) else vote(each) for each in answers.values())
        return Tally(self._nodes.number, votes).verdict

    # For operators. These wait for every healthy node, so that all see the same.

    async def inspect(self, key: str, timeout_ns: int) -> Holding | None:
        """See `ports.Store.inspect`."""
        seen = await self._nodes.ask_healthy(
            f"inspect lock {key}", lambda store, limit: store.inspect(key, limit), timeout_ns
        )
        return one_holding(list(seen.values()), self._nodes.number)

    async def holdings(self, prefix: str, limit: int, timeout_ns: int, after: str = "") -> list[Holding]:
        """See `ports.Store.holdings`. Keys without a majority take room in the lists of nodes: then it asks on."""
        deadline = self._clock.now().mono + timeout_ns
        shown: list[Holding] = []
        while True:  # ends with the last key, for each round starts after the one before
            ask = partial(_holdings, prefix, limit, after)
            seen = await self._nodes.ask_healthy("list locks", ask, deadline - self._clock.now().mono)
            lists = list(seen.values())
            found = all_holdings(lists, limit, self._nodes.number)
            ends = [each[-1].key for each in lists if 0 < limit <= len(each)]
            after = min(ends, default=after)  # up to here the answer of every node is complete
            shown += [each for each in found if not ends or each.key <= after]
            if not ends or len(shown) >= limit:
                return shown[: max(0, limit)]

    async def force_release(self, key: str, actor: str, reason: str, timeout_ns: int) -> AuditRecord | None:
        """See `ports.Store.force_release`. Each node does its part in one step.

        A key that is free at a majority is left alone: what one node still has of it ends with its TTL, and a log with
        a holder that no client sees would be wrong. So any audit record of a node is an act, and is returned.
        """
        deadline = self._clock.now().mono + timeout_ns
        if await self.inspect(key, timeout_ns) is None:
            return None
        seen = await self._nodes.ask_healthy(
            f"force release {key}",
            lambda store, limit: store.force_release(key, actor, reason, limit),
            deadline - self._clock.now().mono,
        )
        records = [each for each in seen.values() if each is not None]
        return one_act(records, self._nodes.number) if records else None

    async def audit(self, limit: int, timeout_ns: int) -> list[AuditRecord]:
        """See `ports.Store.audit`."""
        logs = await self._nodes.ask_healthy(
            "read the audit log", lambda store, within: store.audit(limit, within), timeout_ns
        )
        return all_acts(logs, limit, self._nodes.number)

    async def leave(self, key: str, ticket: str, timeout_ns: int) -> None:
        """There is no queue."""

    async def watch(self, key: str, timeout_ns: int = LISTEN_NS) -> Watch:
        """No waiter is woken: a release is a majority's, and no single node knows of it."""
        raise Misconfigured("a quorum wakes no waiter; its waiters poll")

    async def diagnose(self, timeout_ns: int) -> list[StoreFinding]:
        """See `ports.Diagnosable`. What lowers the guarantee of one node lowers that of the quorum."""

        async def ask(store: Store, limit: int) -> list[StoreFinding]:
            return await store.diagnose(limit) if isinstance(store, Diagnosable) else []

        return all_findings(await self._nodes.ask_healthy("be diagnosed", ask, timeout_ns), self._nodes.number)

    async def ping(self, timeout_ns: int) -> None:
        """Return when a majority answers."""

        async def ping(store: Store, limit: int) -> bool:
            await store.ping(limit)
            return True

        answers = await self._majority(ping, timeout_ns)
        if self._verdict(answers) is not Verdict.WON:
            raise self._nodes.failed("ping", answers, harmless=True)

    async def close(self) -> None:
        """Wait a moment for running requests, and close the nodes."""
        await self._nodes.close()


_MEANING = {Verdict.WON: True, Verdict.LOST: False}


def _fences(votes: Answers[Grant | Busy]) -> list[int]:
    return [each.fence for each in votes.values() if isinstance(each, Grant)]


async def _holdings(prefix: str, limit: int, after: str, store: Store, timeout_ns: int) -> list[Holding]:
    return await store.holdings(prefix, limit, timeout_ns, after)
