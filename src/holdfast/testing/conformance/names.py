"""Conformance: every name that `check_key` lets through is a lock of its own."""

# ruff: noqa: D103 - the name of a check is the sentence that it proves

from __future__ import annotations

from holdfast.testing.conformance.check import StoreChapter, Violation, expect_equal
from holdfast.testing.conformance.environment import CALL_NS, World
from holdfast.types import KEY_BYTES_MAX, Renewal

chapter = StoreChapter()
check = chapter.check

# What a careless store confuses: by case, by normal form, by trimming, by escaping, by its own suffixes.
TAILS = (
    *("", " ", "  ", "/", "//", ":", "::", ".", "..", "\\", "\\\\", "~", "#", "@", "&", "=", "+", "|", "-", "--"),
    *("*", "?", "[", "]", "[a]", "%", "%%", "%s", "%00", "%2F", "_", "$", "$1", "`", "^", "!", "<", ">", "(", ")"),
    *("'", '"', "''", "';--", "; DROP TABLE leases;--", "' OR '1'='1", "\\'", "NULL", "None", "0", "00", "1e3", "-1"),
    *(
        "a",
        "A",
        "straße",
        "strasse",
        "STRASSE",
        "é",
        "e\u0301",
        "ﬁ",
        "fi",
        "İ",
        "i",
        "I",
        "ı",
        "Ω",
        "日本語",
        "🔒",
        "🔒🔒",
    ),
    *("١", "1", "ａ", "א", "́", "..;/", "/etc/passwd", "$(id)", "a b", "a  b", "a%20b", "a+b", "a:b", "a:b:c", "a::b"),
    *(
        ":fence",
        ":token",
        ":owner",
        ":meta",
        ":queue",
        ":q",
        ":tickets",
        ":waiters",
        ":lock",
        ":audit",
        ":free",
        ":wake",
    ),
)


@check()
async def keys_of_every_kind_are_locks_of_their_own(world: World) -> None:
    store, other = await world.open(), await world.open()
    base = world.fresh_key("k")
    asks = {tail: world.ask(base + tail) for tail in TAILS}
    grants = {tail: await world.grant(store, ask) for tail, ask in asks.items()}
    shown = [holding.key for holding in await other.holdings(base, 1000, CALL_NS)]
    expect_equal(shown, sorted(base + tail for tail in TAILS), "the keys that holdings shows")
    for tail, ask in asks.items():
        holding = await other.inspect(ask.key, CALL_NS)
        expect_equal(holding and (holding.key, holding.owner), (ask.key, ask.owner), f"inspect of ...{tail!r}")
    renewals = [Renewal(ask.key, ask.token, grants[tail].claim, ask.ttl_ns) for tail, ask in asks.items()]
    expect_equal(await store.renew_many(renewals, CALL_NS), [True] * len(asks), "the renewals of all keys")
    for count, (tail, ask) in enumerate(asks.items(), start=1):
        released = await store.release(ask.key, ask.token, grants[tail].claim, 0, CALL_NS)
        expect_equal(released, True, f"the release of ...{tail!r}, after {count - 1} others")


@check()
async def the_longest_keys_differ_in_their_last_byte(world: World) -> None:
    store = await world.open()
    base = world.fresh_key()
    long = base + "x" * (KEY_BYTES_MAX - len(base) - 1)
    wide = base + "é" * ((KEY_BYTES_MAX - len(base)) // 2)
    asks = [world.ask(key) for key in (long, long + "a", long + "b", wide)]
    grants = [await world.grant(store, ask) for ask in asks]
    for ask, grant in zip(asks, grants, strict=True):
        await world.busy(store, world.ask(ask.key))
        if not await store.release(ask.key, ask.token, grant.claim, 0, CALL_NS):
            raise Violation(f"a key of {len(ask.key.encode())} bytes could not be released")
        await world.grant(store, world.ask(ask.key))


@check()
async def owners_and_families_come_back_as_they_went_in(world: World) -> None:
    store = await world.open()
    for owner in ("svc@host:1/abc", "a.b-c_d:e/f@h-1.example:65535/ä1", "x" * 120 + "@h:1/i"):
        ask = world.ask(world.fresh_key())._replace(owner=owner, family="a.b_c-d:e/f")
        await world.grant(store, ask)
        holding = await store.inspect(ask.key, CALL_NS)
        expect_equal(holding and (holding.owner, holding.family), (owner, "a.b_c-d:e/f"), "owner and family")
        expect_equal((await world.busy(store, world.ask(ask.key))).owner, owner, "the owner in a refusal")
