"""Every target of the fuzzers, in the suite: what was found once is never found again, and a little more is tried.

First the corpus, input by input: seeds at the corners, and everything that a fuzzer ever broke. Then Hypothesis, with
inputs made of the words of a target and pieces of its corpus, so that they get past the first check, and of plain
bytes. `HYPOTHESIS_PROFILE=thorough` tries more; `make fuzz` continues for as long as it is told to.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fuzz
from fuzzing import target
from fuzzing.target import BYTES_MAX, CORPUS, Target, refused
from fuzzing.targets import TARGETS, closed
from holdfast.errors import BadInput, Misconfigured

DEAR = frozenset({"api", "settings-file", "workflow-file", "environment", "ledger", "generation-file", "secret-url"})
LONGEST_PIECE = 200


@pytest.fixture(scope="module", autouse=True)
def _targets_at_rest() -> Iterator[None]:
    """Thousands of refusals are no news; and what the targets opened is closed with the last of them."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)
    closed()


@pytest.mark.threat("X17")
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_of_the_corpus_breaks_a_promise(name: str) -> None:
    inputs = TARGETS[name].corpus()
    assert inputs, "a target without seeds is fuzzed in the dark"
    broken: list[str] = []
    for path in inputs:
        try:
            TARGETS[name].run(path.read_bytes())
        except Exception as error:
            place = path.relative_to(CORPUS.parents[2])
            broken.append(f"{error!r:.200}: python tools/fuzz.py {name} --replay {place}")
    assert not broken, "\n".join(broken)


@cache
def made_for(name: str) -> st.SearchStrategy[bytes]:
    """Inputs that look like those of a target: its words and pieces of its corpus, with noise between them."""
    chosen = TARGETS[name]
    whole = [data for data in (path.read_bytes() for path in chosen.corpus()) if len(data) <= BYTES_MAX]
    pieces = [piece for data in whole for piece in data.splitlines(keepends=True) if len(piece) <= LONGEST_PIECE]
    noise = st.binary(max_size=4) | st.sampled_from([b"\0", b"\xff", b"9" * 25, b"-1", b"%00", b"\r\n", b'"', b"["])
    part = st.sampled_from([*chosen.words, *pieces, b""]) | noise
    joined = st.lists(part, max_size=8).map(b"".join)
    spliced = st.builds(
        lambda data, at, size, new: data[: at % (len(data) + 1)] + new + data[at % (len(data) + 1) + size :],
        st.sampled_from(whole),
        st.integers(0, BYTES_MAX),
        st.integers(0, 3),
        part,
    )
    return joined | spliced | st.binary(max_size=60)


def examples_of(name: str) -> int:
    most = settings().max_examples
    return most if most > 100 else 12 if name in DEAR else 50


@pytest.mark.threat("X17")
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_promise(name: str) -> None:
    @settings(max_examples=examples_of(name), suppress_health_check=list(HealthCheck), database=None)
    @given(made_for(name))
    def holds(data: bytes) -> None:
        TARGETS[name].run(data)

    holds()


def test_every_folder_of_the_corpus_belongs_to_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


# The bench itself.


def test_a_mutation_is_made_of_the_pool_and_the_words() -> None:
    chance = random.Random(1)
    made = [fuzz.mutated(chance, [b"seed-one", b"seed-two"], [b"WORD"]) for _ in range(500)]
    assert sum(b"WORD" in each for each in made) > 100
    assert sum(b"seed" in each for each in made) > 100
    assert len(set(made)) > 300


def broken_by_x(data: bytes) -> None:
    if b"x" in data:
        raise KeyError("x")


def test_a_driver_keeps_what_it_finds_and_says_how_to_see_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fuzz, "OUT", tmp_path)
    monkeypatch.setattr(target, "CORPUS", tmp_path)
    (tmp_path / "broken").mkdir()
    for name, data in {"one.bin": b"ax", "two.bin": b"bx", "three.bin": b"c"}.items():
        (tmp_path / "broken" / name).write_bytes(data)
    broken = Target("broken", broken_by_x, "never an x")
    assert fuzz._by_mutation(broken, seconds=0, seed=1) == 1
    (kept,) = tmp_path.glob("broken-*")  # the second breaks at the same place, and is no news
    assert b"x" in kept.read_bytes()
    assert "KeyError" in capsys.readouterr().out
    sound = Target("sound", lambda _: None, "nothing", (b"x",))
    assert fuzz._by_mutation(sound, seconds=0, seed=1) == 0


def test_a_target_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["no-such"]) == 64
    assert "redis-replies" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [BadInput("", "is wrong", "mend it"), BadInput("name", "", "mend it"), BadInput("name", "is wrong", "")],
    ids=["field", "problem", "fix"],
)
def test_an_error_that_does_not_help_is_a_finding(error: BadInput) -> None:
    with pytest.raises(AssertionError):
        refused(error)
    with pytest.raises(AssertionError):
        refused(Misconfigured("refused hunter2"), secret="hunter2")


# What the fuzzers taught us, where the mechanism is worth a test of its own.


def test_an_error_can_be_printed_whatever_stands_in_it() -> None:
    for error in (BadInput("name", "caf\udce9", "x"), Misconfigured("at caf\udce9.sock"), Misconfigured("é")):
        str(error).encode()
    assert str(Misconfigured("caf\udce9 é")) == "caf\\udce9 é"
