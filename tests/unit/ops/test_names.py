"""Everything that operators are given to watch a plane follows the words that its keys and metrics begin with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.core.histogram import Histogram
from holdfast.core.metric_reading import Reading
from holdfast.observe.prometheus import rendered
from holdfast.ops.access.redis import redis_access
from holdfast.ops.alerts.files import rules_document, yaml_text
from holdfast.ops.alerts.scenarios import scenarios
from holdfast.ops.dashboard import dashboard
from holdfast.ops.runbooks import RUNBOOKS
from holdfast.ops.runbooks.evidence.metrics import Scrape, ScrapedProcess, answer, samples_of
from holdfast.ops.runbooks.model import RunbookStep
from holdfast.ops.tuning.metrics import gather, parse
from holdfast.ops.tuning.prometheus import queries
from holdfast.plane.settings.sections import NameSettings
from holdfast.types import MS
from support.ops.alert_plans import PLANS, needs_promtool, promtool, proved

ACME = NameSettings("team", "acme")
PLAN = replace(PLANS["quick"], settings=replace(PLANS["quick"].settings, names=ACME), match={"plane": "holdfast_blue"})


@pytest.mark.requires("R0")
def test_alert_rules_differ_from_the_default_ones_in_these_words_alone() -> None:
    default = yaml_text(rules_document(replace(PLANS["quick"], match=PLAN.match)))
    text = yaml_text(rules_document(PLAN))
    assert text.replace("acme_", "holdfast_").replace("team:", "holdfast:") == default
    assert text.replace("holdfast_blue", "").count("holdfast_") == 0
    assert "`holdfast locks team:`" in text or "holdfast:" not in text
    assert 'acme_draining{plane="holdfast_blue"' in text or 'acme_lock_lost_total{plane="holdfast_blue"' in text


@needs_promtool
def test_promtool_takes_the_rules_and_they_fire_as_by_default(tmp_path: Path) -> None:
    (tmp_path / "checked.yml").write_text(yaml_text(rules_document(PLAN)), encoding="utf-8")
    promtool("check", "rules", str(tmp_path / "checked.yml"))
    (group,) = {each["name"] for each in rules_document(PLAN)["groups"] if "ownership" in each["name"]}
    firing = [
        each for each in scenarios(PLAN) if any("NotOwned" in name for names in each.firing.values() for name in names)
    ]
    assert firing
    proved(tmp_path, PLAN, firing, group)


@pytest.mark.requires("R0")
def test_the_dashboard_is_one_of_its_own_and_asks_for_these_metrics_alone() -> None:
    default, own = (dashboard(each) for each in (PLANS["quick"].settings, PLAN.settings))
    assert (default["uid"], own["uid"], own["title"]) == ("holdfast-plane", "acme-plane", "Holdfast (acme)")
    text = json.dumps(own, ensure_ascii=False)
    assert "holdfast_" not in text
    assert "holdfast:" not in text
    assert "holdfast locks team:" in text
    same = text.replace("acme_", "holdfast_").replace("team:", "holdfast:")
    assert json.loads(same)["panels"] == default["panels"]


def metric_steps() -> Iterator[RunbookStep]:
    for book in RUNBOOKS.values():
        yield from (step for step in book.steps if step.queries)


@pytest.mark.requires("R0")
def test_runbooks_ask_for_these_metrics() -> None:
    asked = [query for step in metric_steps() for query in step.queries]
    assert len(asked) > 30
    for query in asked:
        assert query.under("acme").promql == query.promql.replace("holdfast_", "acme_")
    page = rendered([Reading("lock", {"not_owned": 3}, {"family": "approval"})], prefix="acme")[0].decode()
    process = ScrapedProcess("a:1", Scrape({}, 0), Scrape(samples_of(page), 10**9))
    query = next(each for each in asked if each.key == "not owned")
    assert answer(query, [process]) is None
    assert answer(query.under("acme"), [process]) == {"approval": 3.0}


@pytest.mark.requires("R0")
def test_tuning_reads_these_metrics_and_no_others() -> None:
    readings = [Reading("lock", {"hold_ns": {"released": Histogram.of([20 * MS] * 50)}}, {"family": "approval"})]
    page = rendered(readings, prefix="acme")[0]
    found = gather(parse(page, "there", "acme"), "there").holds
    assert found == gather(parse(rendered(readings)[0], "there"), "there").holds
    assert found
    with pytest.raises(Exception, match="whether its metrics begin with holdfast_"):
        parse(page, "there")
    for name, query in queries("7d", {"plane": "holdfast_blue"}, "acme").items():
        assert name.startswith("holdfast_")
        assert query == queries("7d", {"plane": "holdfast_blue"})[name].replace("(holdfast_", "(acme_")


@pytest.mark.requires("R0")
def test_the_redis_users_reach_the_keys_of_the_plane_under_its_word() -> None:
    default, own = redis_access().text, redis_access(keys="team").text
    assert "~team:scheduler:job:*" in own
    assert "~holdfast:fence" in own  # what the store keeps besides the locks has the namespace of the URL
    assert own.count("~team:") == default.count("~holdfast:") - own.count("~holdfast:")
