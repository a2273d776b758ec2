"""Conformance of operator functions: inspect, holdings, forced release, audit. None of them shows a token."""

# ruff: noqa: D103 - the name of a check is the sentence that it proves

from __future__ import annotations

from dataclasses import replace

from holdfast.core.ports import Store
from holdfast.testing.conformance.check import Claim, StoreChapter, Violation, expect, expect_equal, expect_no_token
from holdfast.testing.conformance.environment import CALL_NS, LONG_NS, World
from holdfast.types import AuditRecord, Renewal

chapter = StoreChapter()
check = chapter.check

_ODD = ["*", "?", "[a]", "[", "]", "\\", "\\*", "%", "_", "^", "$", ".", "'", '"', "a"]


@check()
async def no_holder_is_shown_for_a_free_key(world: World) -> None:
    store = await world.open()
    key = world.fresh_key()
    expect_equal(await store.inspect(key, CALL_NS), None, "inspect of a free key")
    expect_equal(await store.holdings(key, 10, CALL_NS), [], "the holdings of a free key")


@check(proves=("R22",))
async def inspect_shows_who_holds_the_key_and_for_how_long(world: World) -> None:
    store = await world.open()
    ask = world.ask(world.fresh_key())
    grant = await world.grant(store, ask)
    holding = await (await world.open()).inspect(ask.key, CALL_NS)
    if holding is None:
        raise Violation("inspect shows no holder for a held key")
    expect_equal(holding.key, ask.key, "the key that inspect shows")
    expect_equal(holding.owner, ask.owner, "the owner that inspect shows")
    expect_equal(holding.family, ask.family, "the family that inspect shows")
    if Claim.FENCED.made_by(store.capabilities):
        expect_equal(holding.fence, grant.fence, "the fence that inspect shows")
    left = holding.remaining_ns
    expect(left is not None and 0 < left <= LONG_NS + world.grain_ns, f"inspect shows {left!r} ns of {LONG_NS}")
    expect(holding.fingerprint, "inspect shows no fingerprint")
    listed = [replace(each, remaining_ns=left) for each in await store.holdings(ask.key, 10, CALL_NS)]
    expect_equal(listed, [holding], "what holdings shows beside inspect")


@check()
async def the_time_of_the_grant_stays_when_the_lease_is_renewed(world: World) -> None:
    store = await world.open()
    ask = world.ask(world.fresh_key())
    grant = await world.grant(store, ask)
    before = await store.inspect(ask.key, CALL_NS)
    await store.renew_many([Renewal(ask.key, ask.token, grant.claim, LONG_NS)], CALL_NS)
    after = await store.inspect(ask.key, CALL_NS)
    if before is None or after is None:
        raise Violation("inspect shows no holder for a held key")
    expect_equal(after.granted_wall_ns, before.granted_wall_ns, "the time of the grant after a renewal")
    expect_equal(after.fingerprint, before.fingerprint, "the fingerprint after a renewal")


@check()
async def fingerprints_tell_two_grants_apart(world: World) -> None:
    store = await world.open()
    key = world.fresh_key()
    prints = []
    for _ in range(2):
        ask = world.ask(key)
        grant = await world.grant(store, ask)
        holding = await store.inspect(key, CALL_NS)
        prints.append(holding and holding.fingerprint)
        await store.release(key, ask.token, grant.claim, 0, CALL_NS)
    expect(prints[0] != prints[1], f"two grants show the same fingerprint {prints[0]!r}")


@check()
async def holdings_are_sorted_by_key_and_limited(world: World) -> None:
    store = await world.open()
    base = world.fresh_key()
    keys = [f"{base}/{tail}" for tail in ("b", "a10", "a2", "é", "Z", "a", "~")]
    for key in keys:
        await world.grant(store, world.ask(key))
    shown = [holding.key for holding in await store.holdings(f"{base}/", 100, CALL_NS)]
    expect_equal(shown, sorted(keys), "the keys that holdings shows")
    for limit in (0, 1, 3):
        few = [holding.key for holding in await store.holdings(f"{base}/", limit, CALL_NS)]
        expect_equal(few, sorted(keys)[:limit], f"the keys that holdings shows with a limit of {limit}")


@check()
async def holdings_go_on_after_a_key_that_others_hold(world: World) -> None:
    store = await world.open()
    base = world.fresh_key()
    keys = sorted(f"{base}/{tail}" for tail in ("b", "a10", "a2", "é", "Z", "a", "~"))
    for key in keys:
        await world.grant(store, world.ask(key))
    for after in ("", *keys, f"{base}/", f"{base}/a1", f"{base}0", "~~~"):
        shown = [holding.key for holding in await store.holdings(f"{base}/", 3, CALL_NS, after)]
        expect_equal(shown, [key for key in keys if key > after][:3], f"the keys that holdings shows behind {after!r}")


@check()
async def holdings_with_no_prefix_show_every_key(world: World) -> None:
    store = await world.open()
    ask = world.ask(world.fresh_key())
    await world.grant(store, ask)
    shown = [holding.key for holding in await store.holdings("", 1_000_000, CALL_NS)]
    expect(ask.key in shown, "a held key is missing from the holdings without a prefix")
    expect_equal(shown, sorted(shown), "the order of all holdings")


@check()
async def a_prefix_is_plain_text_and_not_a_pattern(world: World) -> None:
    store = await world.open()
    base = world.fresh_key()
    for odd in _ODD:
        await world.grant(store, world.ask(f"{base}{odd}x"))
    for odd in _ODD:
        shown = [holding.key for holding in await store.holdings(f"{base}{odd}", 100, CALL_NS)]
        wanted = sorted(f"{base}{each}x" for each in _ODD if f"{each}x".startswith(odd))
        expect_equal(shown, wanted, f"the keys that begin with {odd!r}")


@check()
async def a_forced_release_takes_the_key_from_its_holder(world: World) -> None:
    store, operator = await world.open(), await world.open()
    ask = world.ask(world.fresh_key())
    grant = await world.grant(store, ask)
    await operator.force_release(ask.key, "kit", "check", CALL_NS)
    expect_equal(await store.inspect(ask.key, CALL_NS), None, "inspect after a forced release")
    renewal = Renewal(ask.key, ask.token, grant.claim, LONG_NS)
    expect_equal(await store.renew_many([renewal], CALL_NS), [False], "the holder's renewal after a forced release")
    released = await store.release(ask.key, ask.token, grant.claim, 0, CALL_NS)
    expect_equal(released, False, "the holder's release after a forced release")
    await world.grant(store, world.ask(ask.key))


@check()
async def a_forced_release_leaves_a_complete_record_that_every_connection_sees(world: World) -> None:
    store, operator = await world.open(), await world.open()
    ask = world.ask(world.fresh_key())
    grant = await world.grant(store, ask)
    reason = 'it\'s stuck; "DROP" 100% — naïve'
    record = await operator.force_release(ask.key, "alice@ops", reason, CALL_NS)
    if record is None:
        raise Violation("the forced release of a held key left no record")
    expect_equal(
        (record.key, record.actor, record.reason, record.previous_owner),
        (ask.key, "alice@ops", reason, ask.owner),
        "the record of a forced release",
    )
    expect(record.action, "the record of a forced release does not name the action")
    if Claim.FENCED.made_by(store.capabilities):
        expect_equal(record.previous_fence, grant.fence, "the previous fence in the record")
        expect(record.fence > grant.fence, "the record's fence is not above the holder's")
    expect_equal(await _audit_of(store, ask.key), [record], "the audit log on another connection")


@check()
async def a_forced_release_of_a_free_key_does_nothing_and_leaves_no_record(world: World) -> None:
    store = await world.open()
    key = world.fresh_key()
    expect_equal(await store.force_release(key, "kit", "check", CALL_NS), None, "a forced release of a free key")
    await world.grant(store, world.ask(key, world.short_ttl_ns))
    await world.until_free(store, key)
    expect_equal(await store.force_release(key, "kit", "check", CALL_NS), None, "a forced release of an expired key")
    expect_equal(await _audit_of(store, key), [], "the audit log of a key without a holder")


@check()
async def the_audit_log_shows_the_newest_first_and_no_more_than_asked(world: World) -> None:
    store = await world.open()
    key = world.fresh_key()
    for number in range(4):
        await world.grant(store, world.ask(key))
        await store.force_release(key, "kit", f"number {number}", CALL_NS)
    reasons = [record.reason for record in await _audit_of(store, key)]
    expect_equal(reasons, ["number 3", "number 2", "number 1", "number 0"], "the audit log, newest first")
    expect_equal(len(await store.audit(2, CALL_NS)), 2, "the number of records with a limit of 2")
    expect_equal(await store.audit(0, CALL_NS), [], "the audit log with a limit of 0")


@check()
async def no_view_gives_away_a_token(world: World) -> None:
    store = await world.open()
    ask = world.ask(world.fresh_key())
    await world.grant(store, ask)
    expect_no_token(await world.busy(store, world.ask(ask.key)), ask.token, "a refusal")
    expect_no_token(await store.inspect(ask.key, CALL_NS), ask.token, "inspect")
    expect_no_token(await store.holdings(ask.key, 10, CALL_NS), ask.token, "holdings")
    expect_no_token(store, ask.token, "the repr of the store")
    expect_no_token(await store.force_release(ask.key, "kit", "check", CALL_NS), ask.token, "a forced release")
    expect_no_token(await store.audit(1000, CALL_NS), ask.token, "the audit log")


async def _audit_of(store: Store, key: str) -> list[AuditRecord]:
    return [record for record in await store.audit(1000, CALL_NS) if record.key == key]
