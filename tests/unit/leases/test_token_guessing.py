"""Tokens cannot be guessed: 128 bits of the system's randomness each, and a wrong one is told nothing of the right."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest

import holdfast
import token_timing
from holdfast.errors import HoldfastError
from holdfast.runtime.system import SystemEntropy
from holdfast.web.middleware.auth import Access, Role, TokenEntry, digest_of

pytestmark = pytest.mark.threat("X1")

MANY, LOOKED_AT = 1_000_000, 10_000
_OTHER = str.maketrans("0123456789abcdef", "123456789abcdef0")


def test_a_million_tokens_differ_and_every_bit_of_them_is_a_coin() -> None:
    entropy = SystemEntropy()
    tokens = {entropy.token() for _ in range(MANY)}
    assert len(tokens) == MANY
    assert {len(each) for each in tokens} == {32}
    numbers = [int(each, 16) for each in islice(tokens, LOOKED_AT)]
    for bit in range(128):
        ones = sum(number >> bit & 1 for number in numbers)
        assert abs(ones - LOOKED_AT / 2) < 8 * (LOOKED_AT / 4) ** 0.5, bit  # eight standard deviations


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_every_wrong_token_of_a_lock_gets_the_same_answer(kind: str, tmp_path: Path) -> None:
    url = "memory://guessed" if kind == "memory" else f"sqlite:///{tmp_path}/leases.db"
    with holdfast.connect(url) as locks:
        right = locks.acquire_token("k", 60)
        token, dot, rest = right.partition(".")
        last, first = (each.translate(_OTHER) for each in (token[-1], token[0]))
        wrong = [first + token[1:], token[:-1] + last, token[:-1], token + "0", "0" * 32, token.upper() + "X"]
        said = set()
        for each in wrong:
            with pytest.raises(HoldfastError) as releasing:
                locks.release_token("k", each + dot + rest)
            with pytest.raises(HoldfastError) as renewing:
                locks.renew_token("k", each + dot + rest, 60)
            said |= {(type(found.value), str(found.value)) for found in (releasing, renewing)}
        assert len(said) == 1
        locks.release_token("k", right)


@pytest.mark.threat("X12")
def test_of_ten_thousand_forged_callers_none_is_let_in() -> None:
    right = "a-token-of-an-approver-of-jobs-000001"
    access = Access([TokenEntry("boss", digest_of(right), (Role.APPROVER,))])
    letters = [*map(chr, range(32, 127)), "é", "\0", "\ud800"]
    forged = {right[:at] + letter + right[at + 1 :] for at in range(len(right)) for letter in letters}
    forged |= {right[:at] + letter + right[at:] for at in range(len(right) + 1) for letter in letters}
    forged |= {right[:at] + right[at + 1 :] for at in range(len(right))} | {right.upper(), right * 2, right[::-1]}
    forged -= {each for each in forged if each.strip() == right}  # spaces around it are the header's
    assert len(forged) > 7_000
    digest = digest_of(right)
    assert not [each for each in [*forged, digest, ""] if access.principal(f"Bearer {each}") is not None]
    for scheme in ("Basic", "Token", "bearer bearer", "Digest"):
        assert access.principal(f"{scheme} {right}") is None
    assert access.principal(f"Bearer {right}") is not None


# Time tells nothing either. Measured by `tools/token_timing.py`; here is that it would find what it looks for.


def test_a_kind_that_takes_longer_is_told_from_noise_and_pauses_of_the_machine() -> None:
    chance = random.Random(5)

    def times(mean: float) -> list[int]:
        return [round(chance.gauss(mean, 60)) if chance.random() < 0.95 else 50_000 for _ in range(20_000)]

    alike = token_timing.judged("here", {kind: times(1_000) for kind in ("none", "half", "all but one")})
    assert not alike.told, alike
    leaking = token_timing.judged("here", {"none": times(1_000), "half": times(1_000), "all but one": times(1_005)})
    assert leaking.told, leaking


def test_what_is_tried_is_wrong_in_the_place_that_it_says() -> None:
    token, chance = SystemEntropy().token(), random.Random(5)
    for _ in range(100):
        for name, wrong in token_timing.kinds_of(token, chance):
            right = {"none": 0, "half": 16, "all but one": 31}[name]
            assert (len(wrong), wrong[:right]) == (32, token[:right])
            assert wrong[right] != token[right]


def test_every_comparison_is_tried_and_the_planted_one_ends_early() -> None:
    token = SystemEntropy().token()
    assert token_timing.planted(token)(token)
    assert not token_timing.planted(token)(token[:-1] + "x")
    seen: list[str] = []
    verdict = token_timing.measured("here", token, seen.append, 50)
    assert (verdict.tries, len(seen), token in seen) == (50, 150, False)
