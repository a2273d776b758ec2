"""Whether a wrong token tells by the time that it takes how much of it is right: a measurement, and a verdict.

    python tools/token_timing.py                     100,000 tries of each kind at each place
    python tools/token_timing.py --tries 5000        fewer
    python tools/token_timing.py --json              for programs

Three kinds of wrong token are tried in random order: wrong from the first letter, right in the first half, right in all
but the last letter. A comparison that stops at the first difference takes longer for the latter ones. Welch's t says
how far the means are apart, in units of their own uncertainty, once the slowest tenth (pauses of the machine) is left
out of each; beyond 5 it is no chance. A planted comparison that does stop early is measured first: if that is not
found, the measurement is worth nothing, and says so.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, variance
from typing import Final, NamedTuple

from holdfast.core.ports import Store
from holdfast.drills.env.redis_server import redis_server, running
from holdfast.errors import HoldfastError
from holdfast.runtime.run_sync import run_now
from holdfast.runtime.system import SystemEntropy
from holdfast.stores.redis import engine as redis_store
from holdfast.stores.sqlite import engine as sqlite_store
from holdfast.types import NS, AcquireRequest, Grant
from holdfast.web.middleware.auth import Access, Role, TokenEntry, digest_of

T_MAX: Final = 5.0
KEPT: Final = 0.9  # the fastest share of each kind
_LETTERS: Final = "0123456789abcdef"


class Verdict(NamedTuple):
    """What was measured at one place."""

    place: str
    tries: int  # of each kind
    median_ns: int
    apart_ns: float  # the largest difference between two kinds
    t: float  # the largest
    told: bool  # the time tells something


def kinds_of(token: str, chance: random.Random) -> list[tuple[str, str]]:
    """Wrong tokens, by how much of them is right. New ones each time: where a text lies in memory counts too."""
    found = []
    for name, right in (("none", 0), ("half", len(token) // 2), ("all but one", len(token) - 1)):
        first = chance.choice(_LETTERS.replace(token[right], ""))
        rest = "".join(chance.choices(_LETTERS, k=len(token) - right - 1))
        found.append((name, token[:right] + first + rest))
    chance.shuffle(found)
    return found


def welch(one: Sequence[float], two: Sequence[float]) -> float:
    """How far two means are apart, in units of the uncertainty of their difference."""
    spread = variance(one) / len(one) + variance(two) / len(two)
    return abs(fmean(one) - fmean(two)) / spread**0.5 if spread else 0.0


def judged(place: str, found: Mapping[str, Sequence[int]]) -> Verdict:
    """The verdict about times in nanoseconds, by kind."""
    kept = {name: sorted(times)[: max(2, int(len(times) * KEPT))] for name, times in found.items()}
    pairs = [(one, two) for at, one in enumerate(kept.values()) for two in list(kept.values())[at + 1 :]]
    t = max(welch(one, two) for one, two in pairs)
    apart = max(abs(fmean(one) - fmean(two)) for one, two in pairs)
    everything = sorted(each for times in kept.values() for each in times)
    tries = min(len(times) for times in found.values())
    return Verdict(place, tries, everything[len(everything) // 2], round(apart, 1), round(t, 2), t > T_MAX)


def measured(place: str, token: str, check: Callable[[str], object], tries: int, seed: int = 0) -> Verdict:
    """Try wrong tokens there, in random order, and judge."""
    chance = random.Random(seed)
    found: dict[str, list[int]] = {name: [] for name, _ in kinds_of(token, chance)}
    gc.collect()
    gc.disable()
    try:
        for _ in range(tries):
            for name, each in kinds_of(token, chance):
                began = time.perf_counter_ns()
                check(each)
                found[name].append(time.perf_counter_ns() - began)
    finally:
        gc.enable()
    return judged(place, found)


def planted(right: str) -> Callable[[str], bool]:
    """What must not be: a comparison that ends at the first difference, and takes its time."""

    def check(given: str) -> bool:
        return all(one == two for one, two in zip(right, given, strict=True))

    return check


def places(tries: int) -> Iterator[Verdict]:
    """Everywhere that a token is compared."""
    token = SystemEntropy().token()
    yield measured("planted", token, planted(token), tries)
    access = Access([TokenEntry("boss", digest_of(token), (Role.ADMIN,))])
    yield measured("API", token, lambda each: access.principal(f"Bearer {each}"), tries)
    with tempfile.TemporaryDirectory(prefix="hf-timing-") as place, ExitStack() as stack:
        file = sqlite_store.open_engine(f"sqlite:///{place}/leases.db?synchronous=normal")
        stack.callback(file.close)
        stores: dict[str, Store] = {"SQLite": file.blocking}
        if (executable := redis_server()) is not None:
            server = stack.enter_context(running(executable, Path(place) / "redis"))
            engine = redis_store.open_engine(server.url)
            stack.callback(engine.close)
            stores["Redis"] = engine.blocking
        for name, store in stores.items():
            granted = run_now(
                store.acquire(AcquireRequest("job", token, "me@host:1/a", "timing", 3_600 * NS, None, 0), NS)
            )
            if not isinstance(granted, Grant):
                raise SystemExit(f"{name}: no lease to guess the token of")

            def release(each: str, store: Store = store) -> None:
                with contextlib.suppress(HoldfastError):
                    run_now(store.release("job", each, None, 0, NS))

            yield measured(name, token, release, tries)


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tries", type=int, default=100_000, help="of each kind, at each place")
    parser.add_argument("--json", action="store_true", help="one object for each line")
    asked = parser.parse_args(words)
    fine = True
    for each in places(asked.tries):
        expected = each.place == "planted"
        fine = fine and each.told is expected
        found = each._asdict()
        shown = json.dumps(found) if asked.json else "  ".join(f"{name} {value}" for name, value in found.items())
        print(shown if each.told is expected else f"{shown}  <- not as it should be", flush=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
