"""The tuning arithmetic: the worked example exactly, what is recommended keeps its own constraints, and the library
does with it what the calculator says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.backoff import Fixed, jittered
from holdfast.core.histogram import Histogram
from holdfast.core.lease import states as lease
from holdfast.core.lease import timing
from holdfast.core.lease.timing import settle
from holdfast.core.timer_wheel import SLOT_NS
from holdfast.core.tuning import ttl
from holdfast.core.tuning.drift import DriftKind, SettingNames, disagreements
from holdfast.core.tuning.explain import mechanisms, sentences
from holdfast.core.tuning.percentiles import SourcedDuration, of_counts, of_durations
from holdfast.core.tuning.ttl import (
    MOST_PARTS,
    STEP_NS,
    TAILS,
    USUAL_PARTS,
    Binding,
    Detection,
    FamilyDemand,
    FamilyEvidence,
    Recommendation,
    longest_ttl_ns,
    margin_ns,
    outlives,
    recommend,
    shortest_ttl_ns,
)
from holdfast.errors import BadInput
from holdfast.types import MS, NS, Instant

lengths = st.integers(1, 600 * 1000).map(lambda ms: ms * MS)
short = st.integers(0, 20 * 1000).map(lambda ms: ms * MS)
NAMES = SettingNames("ttl", "renew_every", "failures")


def given_(ns: int | None) -> SourcedDuration | None:
    return None if ns is None else SourcedDuration(ns, "given")


def seconds(value: float) -> SourcedDuration:
    return SourcedDuration(round(value * NS), "given")


def work(hold: float, jitter: float, guard: float | None = None, slo: float | None = None) -> Recommendation:
    known = FamilyEvidence("work", renewed=False, hold=seconds(hold))
    asked = FamilyDemand(
        slo=None if slo is None else seconds(slo),
        jitter=seconds(jitter),
        guard=None if guard is None else seconds(guard),
    )
    return recommend(known, asked)


def kept(
    tail: float, pause: float, slo: float | None, present: float | None = None, every: float | None = None
) -> Recommendation:
    known = FamilyEvidence("kept", tail=seconds(tail), pauses=(seconds(pause),))
    return recommend(known, demand(slo, present, every))


def demand(slo: float | None, present: float | None, every: float | None = None, failures: int = 3) -> FamilyDemand:
    return FamilyDemand(
        slo=None if slo is None else seconds(slo),
        present=None if present is None else seconds(present),
        every=None if every is None else seconds(every),
        failures=failures,
    )


@pytest.mark.requires("R113", "R114", "R115")
def test_the_worked_example_comes_out_exactly() -> None:
    found = work(18, 4, 2, slo=30)
    assert found.timing is not None
    assert (found.ttl_ns, found.timing.renew_every_ns) == (24 * NS, 8 * NS)
    assert [(term.name, term.ns // NS) for term in found.terms] == [("p99 hold", 18), ("jitter", 4), ("guard", 2)]
    assert found.binding is Binding.HOLD
    assert (found.detection_ns, found.takeover_ns, found.possible) == (NS, 25 * NS, True)


@pytest.mark.requires("R116")
def test_a_ttl_of_60_s_cannot_keep_a_takeover_slo_of_30_s_and_that_is_said_with_what_could() -> None:
    asked = demand(30, 60)
    found = recommend(FamilyEvidence("job", tail=seconds(0.1)), asked)
    said = sentences(asked, found)
    assert said[0].startswith("a takeover SLO of 30 s is impossible with a TTL of 60 s unless")
    assert "60 s + 1 s = 61 s; it allows at most 29 s" in said[0]
    assert (found.ttl_ns, found.binding, found.possible) == (29 * NS, Binding.SLO, True)
    (wrong,) = disagreements(SettingNames("job_ttl"), asked, found)
    assert (wrong.against, wrong.by_ns) == (DriftKind.SLO, 31 * NS)


@pytest.mark.requires("R116", "R120")
@pytest.mark.parametrize("found", [work(48, 4, slo=30), kept(0.5, 13, slo=15)], ids=["work", "silence"])
def test_an_slo_that_no_ttl_can_keep_is_called_impossible_and_another_mechanism_is_named(found: Recommendation) -> None:
    said = sentences(FamilyDemand(slo=found.slo), found)
    assert not found.possible
    assert "no TTL keeps a takeover SLO" in said[0]
    assert said[1:][: len(mechanisms(found.renewed))] == [f"instead: {each}" for each in mechanisms(found.renewed)]
    assert ("renew the lease" in said[1]) is not found.renewed


@pytest.mark.requires("R136")
def test_without_an_slo_the_ttl_stays_and_is_called_a_guess() -> None:
    found = kept(0.1, 1, slo=None, present=45)
    assert (found.ttl_ns, found.binding) == (45 * NS, Binding.NEITHER)
    assert "without one a TTL is a guess" in sentences(demand(None, 45), found)[-1]
    assert kept(0.1, 1, slo=None).ttl_ns == 30 * NS


@pytest.mark.requires("R117", "R132", "R133")
def test_a_renewed_lease_is_bound_by_pauses_from_below_and_by_the_slo_from_above_and_by_no_job_length() -> None:
    assert kept(0.1, 1, slo=30, present=20).binding is Binding.NEITHER
    assert kept(0.1, 1, slo=30, present=60).binding is Binding.SLO
    short_one = kept(0.1, 5, slo=30, present=5)
    assert (short_one.binding, short_one.possible) == (Binding.SILENCE, True)
    long_job = FamilyEvidence("kept", hold=seconds(500), tail=seconds(0.1), pauses=(seconds(1),))
    assert recommend(long_job, demand(30, 60)).ttl_ns == kept(0.1, 1, slo=30, present=60).ttl_ns


@pytest.mark.requires("R118", "R119", "R134")
def test_under_high_jitter_renewals_come_more_often_and_the_failure_budget_follows() -> None:
    calm, rough = kept(0.1, 0.1, slo=30), kept(1, 9, slo=30)
    assert calm.timing is not None
    assert rough.timing is not None
    assert calm.timing.renew_every_ns == settle(ttl=29).renew_every_ns
    assert rough.timing.renew_every_ns < calm.timing.renew_every_ns
    assert calm.timing.failures_max == 3 < rough.timing.failures_max
    assert any("rather than every third of the TTL" in each for each in sentences(demand(30, None), rough))


@pytest.mark.requires("R118", "R119")
def test_an_interval_and_a_budget_that_are_set_stay_if_they_do_and_are_named_if_they_do_not() -> None:
    fine = demand(30, 24, 6, failures=4)
    found = recommend(FamilyEvidence("k", tail=seconds(0.1), pauses=(seconds(2),)), fine)
    assert found.timing == fine.timing
    assert disagreements(NAMES, fine, found) == []
    rare = demand(30, 24, 17)
    found = recommend(FamilyEvidence("k", tail=seconds(0.1), pauses=(seconds(2),)), rare)
    (wrong,) = disagreements(NAMES, rare, found)
    assert (wrong.setting, wrong.against) == ("renew_every", DriftKind.EVIDENCE)
    assert wrong.text.startswith("renewed every 17 s, a lease of 24 s outlives ")
    assert wrong.text.endswith("; renew every 8 s")
    assert found.timing == settle(ttl=24), "three renewals in a TTL"
    assert "now renewed every 17 s and given up after 3 failures in a row; it should be renewed every 8 s" in str(
        sentences(rare, found)
    )
    curt = demand(30, 24, failures=1)
    found = recommend(FamilyEvidence("k", tail=seconds(0.1), pauses=(seconds(2),)), curt)
    (wrong,) = disagreements(NAMES, curt, found)
    assert wrong.setting == "failures"
    assert wrong.text == (
        "1 failed renewal ends a lease that is renewed every 8 s, and a silence of 4 x store tail 400 ms + longest "
        "pause 2 s = 2.4 s may cost 1; allow 3"
    )
    assert found.timing == settle(ttl=24)


@pytest.mark.requires("R113", "R117")
@given(hold=lengths, jitter=short, tail=short, slo=st.none() | lengths)
def test_work_that_is_not_renewed_fits_into_what_the_library_trusts(
    hold: int, jitter: int, tail: int, slo: int | None
) -> None:
    known = FamilyEvidence("work", renewed=False, hold=given_(hold), tail=given_(tail))
    found = recommend(known, FamilyDemand(slo=given_(slo), jitter=given_(jitter)))
    assert found.timing is not None
    assert found.timing.loss_age_ns() >= hold + jitter, "the holder still trusts it when the slowest work is done"
    assert not found.timing.auto_renew
    assert sum(term.ns for term in found.terms) == found.ttl_ns or found.ttl_ns == timing.TTL_MIN_NS
    assert found.possible is (slo is None or (found.takeover_ns or 0) <= slo)
    longer = recommend(
        FamilyEvidence("work", renewed=False, hold=given_(hold + NS)), FamilyDemand(jitter=given_(jitter))
    )
    shorter = recommend(FamilyEvidence("work", renewed=False, hold=given_(hold)), FamilyDemand(jitter=given_(jitter)))
    assert (longer.ttl_ns or 0) > (shorter.ttl_ns or 0)


@pytest.mark.requires("R115", "R117", "R120")
@given(
    tail=short,
    pause=short,
    slo=st.none() | lengths,
    present=st.none() | lengths,
    every=st.none() | st.integers(15, 500),
    failures=st.integers(1, 12),
)
def test_a_renewed_lease_keeps_both_bounds_or_says_that_it_cannot(
    tail: int, pause: int, slo: int | None, present: int | None, every: int | None, failures: int
) -> None:
    """Whatever is set now: an interval as thousandths of the TTL, and a failure budget."""
    known = FamilyEvidence("kept", tail=given_(tail), pauses=(SourcedDuration(pause, "seen"),))
    if present is not None and present < timing.TTL_MIN_NS:
        present = None
    set_ns = None if every is None or present is None else max(MS, present * every // 1000)
    asked = FamilyDemand(slo=given_(slo), present=given_(present), every=given_(set_ns), failures=failures)
    found = recommend(known, asked)
    made = found.timing
    assert made is not None
    budgeted = 0 if found.too_long else pause
    assert margin_ns(made, TAILS * tail + budgeted) >= TAILS * tail + budgeted, (
        "a renewal that was held up for that long is in time"
    )
    assert made == settle(ttl=made.ttl_ns / NS, renew_every=made.renew_every_ns / NS, failures=made.failures_max)
    assert found.possible is (slo is None or made.ttl_ns + found.detection_ns <= slo)
    if found.possible and slo is not None:
        settle(ttl=made.ttl_ns / NS, renew_every=made.renew_every_ns / NS, takeover_slo=slo / NS)
    elif slo is not None:
        assert found.binding in {Binding.SILENCE, Binding.SHORTEST}
        assert not outlives(made.ttl_ns - STEP_NS, MOST_PARTS, TAILS * tail + budgeted) or slo < timing.TTL_MIN_NS
    ours = FamilyDemand(
        slo=given_(slo),
        present=SourcedDuration(made.ttl_ns, "recommended"),
        every=SourcedDuration(made.renew_every_ns, "recommended"),
        failures=made.failures_max,
    )
    agreed = disagreements(NAMES, ours, found)
    assert [each.against for each in agreed] == ([] if found.possible else [DriftKind.SLO])
    if found.possible and not found.too_long:
        assert recommend(known, ours).timing == made, "what is recommended is then left as it is"


@pytest.mark.requires("R132", "R133")
@given(tail=short, slo=lengths, more=short, present=st.none() | lengths)
def test_more_slo_never_gives_a_shorter_ttl_and_more_tail_never_one_below_what_it_needs(
    tail: int, slo: int, more: int, present: int | None
) -> None:
    if present is not None and present < timing.TTL_MIN_NS:
        present = None

    def found(slo_ns: int, tail_ns: int) -> Recommendation:
        asked = FamilyDemand(slo=given_(slo_ns), present=given_(present))
        return recommend(FamilyEvidence("kept", tail=given_(tail_ns)), asked)

    assert (found(slo, tail).ttl_ns or 0) <= (found(slo + more, tail).ttl_ns or 0)
    for parts in (USUAL_PARTS, MOST_PARTS):
        assert (shortest_ttl_ns(tail, parts) or 0) <= (shortest_ttl_ns(tail + more, parts) or 0)


@given(slo=st.integers(1, 700_000).map(lambda ms: ms * MS))
def test_the_longest_ttl_for_an_slo_is_the_longest_that_the_library_takes(slo: int) -> None:
    longest = longest_ttl_ns(slo, Detection())
    if longest:
        settle(ttl=longest / NS, takeover_slo=slo / NS)
    beyond = max(longest + STEP_NS, timing.TTL_MIN_NS)
    with pytest.raises(BadInput, match="cannot be met"):
        settle(ttl=beyond / NS, takeover_slo=slo / NS)


@given(every=st.integers(100, 20_000).map(lambda ms: ms * MS), draw=st.integers(0, 65_535))
def test_a_quick_retry_of_the_library_is_never_later_than_the_calculator_takes_it_to_be(every: int, draw: int) -> None:
    made = settle(ttl=3 * every / NS, renew_every=every / NS)
    doubtful = lease.unknown(lease.granted(Instant(0, 0, 0)), made, Instant(every, every, every))
    assert lease.renewal_in_ns(doubtful, made, Instant(every, every, every), draw) + SLOT_NS <= ttl._again_ns(made)


@pytest.mark.requires("R119")
@given(tail=short, pause=short, slo=st.integers(1000, 100_000).map(lambda ms: ms * MS))
def test_the_failure_budget_never_ends_a_lease_before_its_deadline(tail: int, pause: int, slo: int) -> None:
    found = recommend(
        FamilyEvidence("k", tail=given_(tail), pauses=(SourcedDuration(pause, "seen"),)), FamilyDemand(slo=given_(slo))
    )
    made = found.timing
    assert made is not None
    state = lease.granted(Instant(0, 0, 0))
    deadline = found.deadline_ns or 0
    for age in range(made.renew_every_ns, deadline, max(1, made.renew_every_ns // 4)):
        state = lease.unknown(state, made, Instant(age, age, age))
        assert state.live, "failures alone have ended it"
    late = Instant(deadline, deadline, deadline)
    assert not lease.judge(state, made, late, tail).live


def test_a_pause_that_cannot_be_told_from_a_death_is_named_and_not_budgeted_for() -> None:
    known = FamilyEvidence("k", tail=seconds(0.1), pauses=(seconds(2), seconds(300)))
    found = recommend(known, demand(30, 30))
    assert [(term.name, term.ns // MS) for term in found.terms] == [("4 x store tail", 400), ("longest pause", 2000)]
    assert found.too_long == (seconds(300),)
    said = sentences(demand(30, 30), found)
    assert any("a pause of 300 s was seen" in each and "from a death" in each for each in said)


def test_what_is_not_known_gives_no_recommendation_but_its_reason() -> None:
    nothing = recommend(FamilyEvidence("k", no_tail="not enough data: 12 requests"), demand(30, 60))
    assert (nothing.timing, nothing.ttl_ns, nothing.takeover_ns, nothing.possible) == (None, None, None, True)
    said = sentences(demand(30, 60), nothing)
    assert said[0] == "no recommendation: not enough data: 12 requests"
    assert "impossible with a TTL of 60 s" in said[1]
    unseen = recommend(FamilyEvidence("k", renewed=False, tail=seconds(1), no_hold="12 holds"), FamilyDemand())
    assert unseen.refused == "12 holds"


@pytest.mark.parametrize("hold", [8 * 86_400.0, 10**6])
def test_a_hold_that_no_lease_may_outlast_is_refused_with_the_sum(hold: float) -> None:
    for guard in (None, 1.0):
        found = work(hold, 1, guard)
        assert found.timing is None
        assert "no lease may last longer" in (found.refused or "")
    silent = recommend(FamilyEvidence("k"), FamilyDemand(jitter=seconds(hold)))
    assert "which no lease outlives" in (silent.refused or "")


def test_a_guard_below_the_drift_is_taken_and_remarked_upon() -> None:
    found = work(18, 4, 0.1)
    assert found.ttl_ns == 22_100 * MS
    assert any("by which clocks may disagree" in each for each in sentences(FamilyDemand(), found))


@pytest.mark.requires("R158")
def test_retry_delays_of_a_family_are_held_against_its_ttl_and_its_median_hold() -> None:
    asked, found = demand(None, 30), kept(0.1, 1, None, 30)
    assert disagreements(SettingNames("ttl"), asked, found, Fixed(500 * MS), 100 * MS) == []
    (wrong,) = disagreements(SettingNames("ttl"), asked, found, Fixed(500 * MS), 2 * NS)
    assert (wrong.setting, wrong.against, wrong.by_ns) == ("scheduler.busy_delay", DriftKind.RETRY, 1500 * MS)
    assert "not above the median hold of 2 s" in wrong.text
    (wide,) = disagreements(SettingNames("ttl"), demand(None, 1), kept(0.01, 0.01, None, 1), jittered(0.5, 0.3), None)
    assert wide.setting == "scheduler.busy_jitter"
    assert "safety budget" in wide.text


def test_a_spread_says_how_it_was_made_and_never_too_few_beyond() -> None:
    exact = of_durations([ms * MS for ms in range(1, 201)], "holds")
    assert (exact.p50_ns, exact.p95_ns, exact.p99_ns, exact.longest_ns) == (100 * MS, 190 * MS, 198 * MS, 200 * MS)
    assert exact.p99() == SourcedDuration(198 * MS, "p99 of 200 holds")
    counted = of_counts(exact.counts, "holds")
    assert counted.p99() == SourcedDuration(counted.p99_ns, "p99 of 200 holds, estimated between 100 ms and 250 ms")
    for limit in (MS // 2, 60 * MS, 199 * MS, 200 * MS, 300 * MS):
        really = sum(ms * MS > limit for ms in range(1, 201))
        assert exact.beyond(limit) >= really
        assert counted.beyond(limit) >= really
    assert exact.beyond(200 * MS) == 0
    huge = of_counts(Histogram.of([4000 * NS] * 100), "holds")
    assert huge.open
    assert huge.beyond(10**6 * NS) == 100
    assert of_durations([], "holds").number == 0
