"""`holdfast runbook before-ttl-change`: proves on a temporary key that locks behave as a change of TTL requires.

It writes only its own key, `holdfast:runbook:before-ttl-change:<random>`, into the lease store. With `names.keys`, the
key begins with that prefix. The runbook releases the key at the end, and it expires after `KEY_TTL_S` in any case.
Tokens stay in memory: no fact contains one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from holdfast.errors import LOCK_NOT_OWNED, HoldfastError, NotOwner
from holdfast.ops.runbooks.evidence.locks import ProofFact, span
from holdfast.ops.runbooks.model import (
    Case,
    Conclusion,
    EvidenceSource,
    FindingRule,
    FindingSeverity,
    NextStep,
    Runbook,
    RunbookStep,
)
from holdfast.ops.runbooks.sources import RunbookContext
from holdfast.plane.settings.consistency import takeovers
from holdfast.plane.settings.inventory import inventory
from holdfast.runtime.gather import pause, together
from holdfast.types import MS

PREFIX: Final = "holdfast:runbook:before-ttl-change:"
KEY_TTL_S: Final = 10.0
SHORT_TTL_S: Final = 0.25
CONTENDERS: Final = 8
MISMATCH: Final = "lock release skipped: token mismatch"

_STEPS: Final = ("contention", "owner", "stale release", "expiry", "exclusion", "clean-up")


@dataclass(frozen=True, slots=True)
class TimingFact:
    """The times that the settings promise now."""

    families: Mapping[str, tuple[float, float | None]]  # TTL and renewal interval
    takeovers: Mapping[str, float]

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        found = [
            f"{name}: TTL {span(ttl)}, {'not renewed' if every is None else f'renewed every {span(every)}'}"
            for name, (ttl, every) in self.families.items()
        ]
        return [*found, *(f"{what}: taken over within {bound:g} s" for what, bound in self.takeovers.items())]

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return asdict(self)


async def _timing(scene: RunbookContext) -> TimingFact:
    lines = {line.family: (scene.ttl(line.family) or line.ttl, line.renew_every) for line in inventory(scene.settings)}
    return TimingFact(lines, {each.what: each.seconds for each in takeovers(scene.settings)})


class _Heard(logging.Filter):
    """Collects log messages of the library about our key, and lets all others pass."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key
        self.lines: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        text = record.getMessage()
        if self._key not in text:
            return True
        self.lines.append(text)
        return False


@contextmanager
def _listening(key: str) -> Iterator[list[str]]:
    log, heard = logging.getLogger("holdfast"), _Heard(key)
    log.addFilter(heard)
    try:
        yield heard.lines
    finally:
        log.removeFilter(heard)


def _key(scene: RunbookContext) -> str:
    made: str = scene.notes.setdefault("key", scene.settings.names.words.spelled(PREFIX) + scene.entropy.token()[:12])
    return made


def _token(scene: RunbookContext) -> str:
    found: str | None = scene.notes.get("token")
    if not found:
        raise HoldfastError("an earlier step has failed")
    return found


async def _contention(scene: RunbookContext) -> ProofFact:
    key = _key(scene)
    token = await scene.locks().acquire_token(key, KEY_TTL_S)
    scene.notes["token"] = token
    other = await scene.contender().acquire_token(key, KEY_TTL_S)
    if other:
        scene.notes["other"] = other
    return ProofFact(
        "while one client holds the key, another client's acquire returns an empty token",
        bool(token) and not other,
        (f"first acquire: {'a token' if token else 'none'}", f"second acquire: {'A TOKEN' if other else 'empty'}"),
    )


async def _owner(scene: RunbookContext) -> ProofFact:
    _token(scene)
    look = await scene.contender().inspect(_key(scene))
    left = -1.0 if look.remaining is None else look.remaining
    scene.notes["fence"] = look.fence
    return ProofFact(
        "any client can read the owner of the key and the remaining time",
        look.held and bool(look.owner) and 0 < left <= KEY_TTL_S,
        (f"owner {look.owner}", f"remaining {left * 1000:.0f} ms of {KEY_TTL_S * 1000:.0f} ms", f"fence {look.fence}"),
    )


async def _refusal(call: Callable[[], Awaitable[None]]) -> str:
    """The store's answer; empty: the call succeeded."""
    try:
        await call()
    except NotOwner as refused:
        return str(refused)
    return ""


async def _stale_release(scene: RunbookContext) -> ProofFact:
    key, stale = _key(scene), _token(scene)
    await scene.locks().release_token(key, stale)
    owner = await scene.contender().acquire_token(key, KEY_TTL_S)
    scene.notes["token"] = owner
    before = await scene.contender().inspect(key)
    with _listening(key) as logged:
        answer = await _refusal(lambda: scene.locks().release_token(key, stale))
    after = await scene.contender().inspect(key)
    said = any(line.startswith(MISMATCH) for line in logged)
    return ProofFact(
        "a stale owner cannot release the new owner's key",
        bool(owner) and answer == LOCK_NOT_OWNED and said and after.held and after.fence == before.fence,
        (
            f"answer: {answer or 'IT WAS RELEASED'}",
            f"log: {logged[0] if logged else 'NOTHING'}",
            f"the new owner {'still has it' if after.held else 'HAS LOST IT'}, fence {after.fence}",
        ),
    )


async def _expiry(scene: RunbookContext) -> ProofFact:
    key = f"{_key(scene)}:short"
    scene.notes["short"] = key
    _token(scene)
    late = await scene.locks().acquire_token(key, SHORT_TTL_S)
    first = await scene.contender().inspect(key)
    while (await scene.contender().inspect(key)).held:
        await pause(10 * MS)
    renewal = await _refusal(lambda: scene.locks().renew_token(key, late, KEY_TTL_S))
    taken = await scene.contender().acquire_token(key, KEY_TTL_S)
    scene.notes["short token"] = taken
    second = await scene.contender().inspect(key)
    rises = first.fence is not None and second.fence is not None and second.fence > first.fence
    return ProofFact(
        "a key that is not renewed becomes free at its expiry, and the next grant has a higher fence",
        bool(late) and bool(taken) and renewal == LOCK_NOT_OWNED and rises,
        (
            f"after {SHORT_TTL_S * 1000:.0f} ms: free, renewal by the late owner: {renewal or 'GRANTED'}",
            f"fence {first.fence}, then {second.fence}",
        ),
    )


async def _exclusion(scene: RunbookContext) -> ProofFact:
    key, token = _key(scene), _token(scene)
    sides = [scene.locks() if number % 2 else scene.contender() for number in range(CONTENDERS)]
    calls = {number: lambda side=side: side.acquire_token(key, KEY_TTL_S) for number, side in enumerate(sides)}
    held = list((await together(calls, scene.request_ns)).values())
    await scene.contender().release_token(key, token)
    race = list((await together(calls, scene.request_ns)).values())
    won = [each for each in race if isinstance(each, str) and each]
    scene.notes["token"] = won[0] if won else ""
    while_held = sum(each == "" for each in held)
    return ProofFact(
        "concurrent requests never get a held key, and exactly one gets a free one",
        while_held == CONTENDERS and len(won) == 1 and sum(each == "" for each in race) == CONTENDERS - 1,
        (
            f"{while_held} of {CONTENDERS} got an empty token while it was held",
            f"{len(won)} of {CONTENDERS} got it when it was free",
        ),
    )


async def _clean_up(scene: RunbookContext) -> ProofFact:
    """Runs even if earlier steps failed."""
    pairs = [(_key(scene), scene.notes.get(name)) for name in ("token", "other")]
    pairs.append((scene.notes.get("short", ""), scene.notes.get("short token")))
    for key, token in pairs:
        if key and token:
            with suppress(NotOwner):  # it has expired meanwhile
                await scene.locks().release_token(key, token)
    left = [each.key for each in await scene.locks().list(_key(scene), 10)]
    return ProofFact("the key is deleted", not left, tuple(left) or (f"no key begins with {_key(scene)}",))


def _proof(step: str, when: str, meaning: str) -> FindingRule:
    def judge(case: Case) -> Conclusion | None:
        found = case.fact(step, ProofFact)
        if found is None or found.holds:
            return None
        sentence = f"It is not true that {found.claim} ({'; '.join(found.seen)}). {meaning} Change no TTL."
        return Conclusion(sentence, (step,), (NextStep("holdfast runbook store-outage", "whether the store works"),))

    return FindingRule(f"{step} not proved", FindingSeverity.ACT, when, judge)


def _step(
    name: str, looks_at: str, by_hand: tuple[str, ...], gather: Callable[[RunbookContext], Awaitable[ProofFact]]
) -> RunbookStep:
    return RunbookStep(name, looks_at, by_hand, EvidenceSource.LEASES, gather)


RUNBOOK: Final = Runbook(
    name="before-ttl-change",
    title="Before a TTL, a renewal interval or a retry delay is changed",
    when="every time, in staging, before defaults change; after the store is upgraded or moved",
    needs="the lease store of staging; it writes a temporary key",
    over="all proofs hold: it exits 0, and the change may go to production. Its temporary key is gone by then",
    writes=f"one temporary key, {PREFIX}…, for at most {KEY_TTL_S:g} s",
    in_order=True,
    steps=(
        RunbookStep(
            "timing",
            "the current settings: TTLs, renewal intervals and takeover bounds",
            ("holdfast up --check", "holdfast inventory"),
            EvidenceSource.SETTINGS,
            _timing,
        ),
        _step(
            "contention", "a key that two clients request", ("holdfast run KEY --on-busy fail -- true",), _contention
        ),
        _step("owner", "its owner and remaining time", ("holdfast inspect KEY", "redis-cli PTTL KEY"), _owner),
        _step(
            "stale release",
            f"a release with an old token: the store must refuse it with `{LOCK_NOT_OWNED}`, and log `{MISMATCH}`",
            (f"grep '{MISMATCH}' LOG",),
            _stale_release,
        ),
        _step("expiry", "a key that is not renewed", ("holdfast watch KEY",), _expiry),
        _step("exclusion", f"{CONTENDERS} concurrent requests, for a held key and for a free one", (), _exclusion),
        _step("clean-up", "the key is released", ("holdfast locks holdfast:runbook:",), _clean_up),
    ),
    rules=(
        _proof("contention", "a second acquire of a held key returns a token", "Two clients would hold one lock."),
        _proof("owner", "owner or remaining time cannot be read", "In an incident, the holder would be unknown."),
        _proof(
            "stale release", "a stale release is not refused as it must be", "A late owner would free another's lock."
        ),
        _proof("expiry", "an expired key is not free, or its fence does not rise", "Takeover cannot be relied upon."),
        _proof("exclusion", "more or fewer than one of many get a free key", "The lock does not exclude."),
        _proof("clean-up", "the temporary key still exists", "It will expire; check the store first."),
    ),
    fine="Ownership, expiry, exclusion and refusal of stale owners hold on this store: a TTL can be changed safely.",
    essential=_STEPS,
    then=(
        NextStep(
            "holdfast tune --family FAMILY", "the TTL that your holds, your network and your takeover time require"
        ),
        NextStep("holdfast up --check", "after the change: the new takeover bounds"),
        NextStep("holdfast runbook not-owned --ledger LEDGER", "a day later: whether more leases are lost than before"),
    ),
)
