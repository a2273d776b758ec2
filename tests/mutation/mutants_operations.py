"""Bugs in what operators use: drills, alerts, runbooks, tuning, and what a store shows of a lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from holdfast.core import name_prefixes
from holdfast.core.history.events import Record
from holdfast.core.history.invariants import Breach, check
from holdfast.core.tuning import ttl
from holdfast.drills import catalog, model
from holdfast.drills.scenarios import compound
from holdfast.drills.verdict import leases
from holdfast.observe import prometheus
from holdfast.ops.alerts.rules import contention
from holdfast.ops.runbooks.collectors import plane
from holdfast.ops.runbooks.evidence.plane import PendingFact
from holdfast.plane.locks import registry as families
from holdfast.stores.redis import store as redis_store
from mutation.detectors import ServerTest, Test
from mutation.mutant import MutantGroup
from mutation.mutants_servers import rewrite

group = MutantGroup()
keep = group.keep

MANY = "many: a tool that looks away"


@keep(
    MANY,
    where="drills/scenarios/compound.py",
    found_by=Test(
        "e2e.drills.test_drills_played",
        "test_compound_has_failing_renewals_an_expiry_a_stale_release_and_a_late_write_in_one_scene",
        at="assert [each.text for each in judged.scene.claims if each.kept]",
    ),
    attacks=("R35",),
)
def a_drill_without_the_stale_release(patch: pytest.MonkeyPatch) -> None:
    """The scene of renewals that fail ends before the former holder renews and releases all the same."""
    patch.setattr(compound, "_insist", lambda *_: None)


@keep(
    MANY,
    where="drills/verdict/leases.py",
    found_by=Test(
        "unit.drills.test_drill_verdict",
        "test_the_same_loss_with_guards_fails_and_names_both_operations",
        at="assert not judged.ok",
    ),
    attacks=("R73",),
)
def a_drill_that_excuses_stale_writes(patch: pytest.MonkeyPatch) -> None:
    """A write of a paused holder that overwrites that of its successor is no reason for a drill to fail."""

    def others(history: Sequence[Record]) -> list[Breach]:
        return [each for each in check(history) if each.rule not in leases.SHOWN]

    patch.setattr(leases, "check", others)
    patch.setattr(leases, "overwritten", lambda history: [])


@keep(
    MANY,
    where="drills/model.py",
    found_by=Test(
        "unit.drills.test_drill_verdict",
        "test_a_takeover_beyond_the_slo_fails_the_scene_with_both_numbers",
        at="assert judged.problems ==",
    ),
    attacks=("R140",),
)
def a_drill_in_which_every_takeover_is_in_time(patch: pytest.MonkeyPatch) -> None:
    """A holder is killed, and no takeover is too late for the objective."""
    patch.setattr(model.MeasuredTakeover, "in_time", True)


@keep(
    MANY,
    where="drills/catalog.py",
    found_by=Test(
        "unit.drills.test_drill_plan",
        "test_an_outage_lasts_for_30_s_and_for_120_s_if_that_is_asked_for",
        at="assert lengths == [30.0, 120.0]",
    ),
    attacks=("R107",),
)
def an_outage_of_three_seconds(patch: pytest.MonkeyPatch) -> None:
    """The drill of an outage is over before any lease has run out."""
    shorter = [replace(each, seconds=3.0) if each.name == "outage" else each for each in catalog.DRILLS]
    patch.setattr(catalog, "DRILLS", tuple(shorter))


@keep(
    MANY,
    where="ops/alerts/rules/contention.py",
    found_by=Test(
        "unit.ops.test_alert_rules",
        "test_a_trend_accelerates_when_it_rose_more_than_over_the_window_before",
        at="assert re.fullmatch(",
        given={
            "name": "HoldfastOrphansAccelerating",
            "trend": "holdfast_orphan_replayed:increase{}",
            "metric": "holdfast_orphan_replayed_total",
        },
    ),
    attacks=("R72",),
)
def a_steady_rise_is_reported_as_acceleration(patch: pytest.MonkeyPatch) -> None:
    """The rise of a trend is compared with nothing that was before."""
    patch.setattr(contention, "FASTER", 0.0)


@keep(
    MANY,
    where="ops/runbooks/collectors/plane.py",
    found_by=Test(
        "integration.ops.test_runbook_locks",
        "test_messages_that_pile_up_while_run_locks_are_busy_are_said_with_both_rates",
        at="assert fact.growth >= GROWTH",
    ),
    attacks=("R155",),
)
def messages_that_never_pile_up(patch: pytest.MonkeyPatch) -> None:
    """What was counted first is compared with itself."""

    def still(first: Mapping[str, int], last: Mapping[str, int], spacing: float) -> PendingFact:
        return PendingFact(first, first, spacing)

    patch.setattr(plane, "PendingFact", still)


@keep(
    "many: a setting that is read and never used",
    where="plane/locks/registry.py",
    found_by=Test(
        "unit.ops.test_names",
        "test_the_redis_users_reach_the_keys_of_the_plane_under_its_word",
        at='assert "~team:scheduler:job:*" in own',
    ),
    attacks=("R0",),
)
def keys_under_the_default_prefix_only(patch: pytest.MonkeyPatch) -> None:
    """The prefix of lock keys that an operator has chosen changes no key."""
    patch.setattr(families.LockFamily, "under", lambda self, prefix: self)


@keep(
    "many: a setting that is read and never used",
    where="observe/prometheus.py",
    found_by=Test(
        "unit.ops.test_names", "test_runbooks_ask_for_these_metrics", at="assert answer(query, [process]) is None"
    ),
    attacks=("R0",),
)
def metrics_under_the_default_prefix_only(patch: pytest.MonkeyPatch) -> None:
    """The metrics of a process keep the default prefix, and the rules and runbooks of the plane find none."""
    family = prometheus._family
    patch.setattr(prometheus, "_family", lambda metric, found, prefix: family(metric, found, name_prefixes.DEFAULT))


@keep(
    MANY,
    where="core/tuning/ttl.py",
    found_by=Test(
        "simulation.test_tuned_leases",
        "test_a_ttl_below_what_the_evidence_needs_is_lost_and_the_recommended_one_is_not",
        at="assert losses(made.ttl_ns / NS",
    ),
    attacks=("R138",),
)
def a_recommendation_without_the_recorded_pauses(patch: pytest.MonkeyPatch) -> None:
    """The TTL and the interval are computed as if renewals had never been held up."""
    jitter = ttl._jitter
    patch.setattr(ttl, "_jitter", lambda evidence, *rest: jitter(replace(evidence, pauses=()), *rest))


@keep(
    MANY,
    where="plane/locks/registry.py",
    found_by=Test(
        "unit.plane.loops.test_loops",
        "test_snapshots_are_written_every_five_seconds_and_fifteen_after_a_crash_at_the_latest",
        at="assert 0 < (held.remaining or 0) <= 10",
        given={"seed": 0},
    ),
    attacks=("R53",),
)
def a_snapshot_writer_that_is_missed_for_half_a_minute(patch: pytest.MonkeyPatch) -> None:
    """The lock of the snapshot writer lasts six of its intervals, and so does its absence after a crash."""
    patch.setattr(families, "SNAPSHOT_WRITER", replace(families.SNAPSHOT_WRITER, ttl=30.0, per_interval=6.0))


@keep(
    "many: seconds where milliseconds are meant",
    where="stores/redis/lua/acquire.lua",
    found_by=ServerTest(
        "e2e.leases.test_redis_trouble",
        "test_the_key_on_the_wire_is_what_a_runbook_expects",
        at='server.cli("PTTL", "wf:run:42") <= 60_000',
    ),
    attacks=("R126",),
)
def a_key_that_lasts_a_thousand_times_as_long(patch: pytest.MonkeyPatch) -> None:
    """The expiry of the key is set in seconds."""
    rewrite(patch, redis_store.ACQUIRE, ("value, 'PX', ARGV[3], 'NX'", "value, 'EX', ARGV[3], 'NX'"))
