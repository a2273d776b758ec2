"""Hostile input until the time is up: for each target of tests/fuzzing, by coverage where atheris is, else by mutation.

    python tools/fuzz.py                                    every target, ten seconds each
    python tools/fuzz.py redis-replies --seconds 3600       one of them, for an hour
    python tools/fuzz.py --driver mutation                  without atheris, also where it is installed
    python tools/fuzz.py redis-replies --replay FILE        one input again, with the whole traceback
    python tools/fuzz.py --list                             what there is, and what each promises

Each target runs in a process of its own, with a limit of memory and one of time for each input. What breaks a promise
is written to build/fuzz, with the one command that shows it again, and the exit code is 1. What atheris learns is kept
in build/fuzz/corpus and used the next time; what should be tried forever belongs into tests/fuzzing/corpus.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import importlib.util
import logging
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from pages import ROOT

sys.path[:0] = [str(ROOT / "tests")]

if TYPE_CHECKING:
    from fuzzing.target import Target

OUT: Final = ROOT / "build" / "fuzz"
MEMORY_BYTES: Final = 6 << 30  # of addresses: threads and libraries take some before anything happens
RSS_MB: Final = 2_048
PATIENCE_S: Final = 30
POOL_MAX: Final = 2_000
FOUND_MAX: Final = 10
GRACE_S: Final = 300
COVERAGE, MUTATION = "atheris", "mutation"


def main(words: Sequence[str] | None = None) -> int:
    """Run what is requested, and say what came of it."""
    asked = _parser().parse_args(words)
    if asked.child:
        return _child(asked.targets[0], asked.driver, asked.seconds, asked.seed)
    targets = _targets().TARGETS
    if unknown := sorted(set(asked.targets) - set(targets)):
        print(f"there is no target {unknown[0]}; there is {', '.join(targets)}", file=sys.stderr)
        return 64
    if asked.list:
        for each in targets.values():
            print(f"{each.name:18} {len(each.corpus()):4} inputs   {each.promise}")
        return 0
    if asked.replay is not None:
        if len(asked.targets) != 1:
            print("say which target the input is for", file=sys.stderr)
            return 64
        return _replayed(targets[asked.targets[0]], asked.replay)
    driver = _driver(asked.driver)
    if driver is None:
        return 69
    names = asked.targets or list(targets)
    return 1 if sum(_run(name, driver, asked.seconds, asked.seed) for name in names) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="none: all")
    parser.add_argument("--seconds", type=int, default=10, help="for each target")
    parser.add_argument("--driver", choices=(COVERAGE, MUTATION), help="not given: atheris if it is installed")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations; 0: another one each time")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="try this input once")
    parser.add_argument("--list", action="store_true", help="show the targets")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser


def _targets() -> ModuleType:
    from fuzzing import targets  # atheris must have a say before anything else is imported

    return targets


def _driver(wanted: str | None) -> str | None:
    there = importlib.util.find_spec("atheris") is not None
    if wanted == COVERAGE and not there:
        print("atheris is not installed: pip install atheris (wheels for Linux, Python 3.11 to 3.13)", file=sys.stderr)
        return None
    if wanted is None and not there:
        print("driver: mutation of the corpus (atheris is not installed; it would go by coverage)")
    else:
        print(f"driver: {wanted or COVERAGE}")
    return wanted or (COVERAGE if there else MUTATION)


# One target, in a process of its own.


def _run(name: str, driver: str, seconds: int, seed: int) -> int:
    """Run a target and say how it went. Returns how much was found."""
    OUT.mkdir(parents=True, exist_ok=True)
    before = set(OUT.glob(f"{name}-*"))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hf-fuzz-") as place:
        command = [sys.executable, __file__, name, "--child", "--driver", driver]
        command += ["--seconds", str(seconds), "--seed", str(seed)]
        child = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "TMPDIR": place}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            said = child.communicate(timeout=seconds + GRACE_S)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            child.kill()
            said = child.communicate()[0].decode(errors="replace")
    found = sorted(set(OUT.glob(f"{name}-*")) - before)
    ran = max(map(int, re.findall(r"(?:number_of_executed_units: |executed: |^#)(\d+)", said, re.MULTILINE)), default=0)
    took = time.monotonic() - began
    verdict = f"{len(found)} found" if found else "nothing found" if not child.returncode else "ended early"
    print(f"{name:18} {ran:>10,} inputs in {took:4.0f} s by {driver}: {verdict}", flush=True)
    if child.returncode:
        print("\n".join(f"    {line}" for line in said.splitlines()[-40:]))
    for path in found:
        print(f"    again: {sys.executable} tools/fuzz.py {name} --replay {path.relative_to(ROOT)}")
    return len(found) or int(child.returncode != 0)


def _child(name: str, driver: str, seconds: int, seed: int) -> int:
    logging.disable(logging.CRITICAL)
    if driver == COVERAGE:
        return _by_coverage(name, seconds, seed)
    made = _targets()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        return _by_mutation(made.TARGETS[name], seconds, seed or time.time_ns())
    finally:
        made.closed()


class Hung(Exception):
    """An input took longer than anything should."""


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    def over(_number: int, _frame: FrameType | None) -> None:
        raise Hung(f"not done within {PATIENCE_S} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _replayed(target: Target, path: Path) -> int:
    try:
        with _patience():
            target.run(path.read_bytes())
    except Exception:  # noqa: BLE001 - whatever it is, it is what is to be seen
        traceback.print_exc()
        return 1
    finally:
        _targets().closed()
    print(f"{target.name}: {path.name} breaks nothing")
    return 0


# Mutation: for every machine. It knows the words of each target and the corpus, and nothing of the code.


def _by_mutation(target: Target, seconds: int, seed: int) -> int:
    from fuzzing.target import BYTES_MAX

    chance = random.Random(seed)
    first = [path.read_bytes() for path in target.corpus()]
    pool = [each for each in first if len(each) <= BYTES_MAX] or [b""]
    places: set[tuple[str, str, int]] = set()
    done, ends = 0, time.monotonic() + seconds
    while len(places) < FOUND_MAX and (done < len(first) or time.monotonic() < ends):
        data = first[done] if done < len(first) else mutated(chance, pool, target.words)[:BYTES_MAX]
        done += 1
        try:
            with _patience():
                target.run(data)
        except Exception as error:  # noqa: BLE001 - any exception is a finding
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = (type(error).__name__, last.filename, last.lineno or 0)
            if place not in places:
                places.add(place)
                _kept(target.name, data, error)
        if chance.random() < 0.01:
            pool.append(data[:BYTES_MAX])
            if len(pool) > POOL_MAX:
                pool.pop(chance.randrange(len(pool)))
    print(f"executed: {done}")
    return 1 if places else 0


def mutated(chance: random.Random, pool: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """An input like those of the pool, changed in a few places."""
    made = bytearray(chance.choice(pool))
    for _ in range(chance.choice((1, 1, 2, 3, 5, 8))):
        at = chance.randrange(len(made) + 1)
        end = min(len(made), at + chance.choice((1, 1, 2, 4, 16)))
        how = chance.randrange(8)
        if how <= 1 and words:
            made[at:at] = chance.choice(words)
        elif how == 2 and words:
            made[at:end] = chance.choice(words)
        elif how == 3:
            made[at:at] = made[at:end] * chance.choice((1, 2, 100))
        elif how == 4:
            del made[at:end]
        elif how == 5:
            other = chance.choice(pool)
            made[at:] = other[chance.randrange(len(other) + 1) :]
        elif how == 6:
            made[at:at] = chance.choice((b"\0", b"\xff", b"\n", b"\r\n", b"-1", b"9" * 25, b"%", b'"', b"\\", b" "))
        elif end > at:
            made[at] = chance.randrange(256)
    return bytes(made)


def _kept(name: str, data: bytes, error: BaseException) -> None:
    path = OUT / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    print("".join(traceback.format_exception(error)), flush=True)


# Coverage: atheris looks which lines an input reaches, and keeps those that reach new ones.


def _by_coverage(name: str, seconds: int, seed: int) -> int:
    atheris: Any = importlib.import_module("atheris")  # not everywhere, so that nothing may depend on it
    with atheris.instrument_imports(include=["holdfast", "yaml", "tomllib"], enable_loader_override=False):
        made = _targets()
    target: Target = made.TARGETS[name]
    learned = OUT / "corpus" / name
    learned.mkdir(parents=True, exist_ok=True)
    words = OUT / f"words.{name}.dict"
    words.write_text("".join(f"{_quoted(word)}\n" for word in target.words))
    from fuzzing.target import BYTES_MAX, CORPUS

    for each in target.corpus():  # also those that are longer than what it makes
        target.run(each.read_bytes())
    flags = [f"-max_total_time={seconds}", f"-max_len={BYTES_MAX}", f"-timeout={PATIENCE_S}", f"-rss_limit_mb={RSS_MB}"]
    flags += [f"-artifact_prefix={OUT}/{name}-", f"-dict={words}", "-print_final_stats=1", f"-seed={seed}"]
    atheris.Setup([sys.argv[0], *flags, str(learned), str(CORPUS / name)], target.run)
    atheris.Fuzz()
    return 0


def _quoted(word: bytes) -> str:
    return '"' + "".join(chr(b) if 32 < b < 127 and b not in b'"\\' else f"\\x{b:02x}" for b in word) + '"'


if __name__ == "__main__":
    sys.exit(main())
