"""Alert rules at work, in promtool: each fires where it should, and normal events page no one.

The scenarios are those of `holdfast alerts --tests`, made from the settings. Quiet ones are tested against all
rules; what fires, against the group that it belongs to, which is a fifth of the work. A few are written out by hand,
with plain numbers, so that the scenarios are not tested by what made them alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.ops.alerts import alerts, groups
from holdfast.ops.alerts.files import rules_document, yaml_text
from holdfast.ops.alerts.scenarios import scenarios
from support.ops.alert_plans import PLANS, needs_promtool, promtool, proved

DEFAULT = PLANS["default"]
FOUND = scenarios(DEFAULT)
SPOKEN_OF = {each.name: {name for names in each.firing.values() for name in names} for each in FOUND}
ACROSS = {"the store is down", "the whole plane is gone"}  # where the rules of one group are silent for another's sake
CALM = [each for each in FOUND if each.quiet is not None or not SPOKEN_OF[each.name] or each.name in ACROSS]
GROUPS = [each.name for each in groups(DEFAULT)]


def test_every_alert_has_a_scenario_in_which_it_fires_and_every_name_is_one() -> None:
    for name, plan in PLANS.items():
        found = scenarios(plan)
        assert {each.name for each in alerts(plan)} == {
            alert for each in found for names in each.firing.values() for alert in names
        }, name
        assert len({each.name for each in found}) == len(found)


def test_nothing_that_a_plane_has_not_is_tried() -> None:
    small = {each.name for each in scenarios(PLANS["small"])}
    assert "overdue jobs stay" not in small
    assert "overdue jobs stay" in SPOKEN_OF


@needs_promtool
@pytest.mark.requires("R33", "R97")
@pytest.mark.parametrize("half", [0, 1])
def test_normal_failover_pages_no_one(tmp_path: Path, half: int) -> None:
    chosen = CALM[half::2]
    assert {"a rolling restart pages no one", "the leader of every loop is killed and no alert fires"} <= {
        each.name for each in CALM
    }
    proved(tmp_path, DEFAULT, chosen)


@needs_promtool
@pytest.mark.requires("R33", "R62", "R64", "R72", "R96", "R106", "R120", "R139", "R154")
@pytest.mark.parametrize("group", GROUPS)
def test_each_alert_fires_where_it_should_and_no_other_beside_it(tmp_path: Path, group: str) -> None:
    """With a label on every series, as where one Prometheus watches several planes: nothing may get lost by it."""
    names = {each.name for found in groups(DEFAULT) if found.name == group for each in found.alerts}
    plan = replace(DEFAULT, match={"plane": "blue"})
    chosen = [each for each in scenarios(plan) if SPOKEN_OF[each.name] & names]
    proved(tmp_path, plan, chosen, f"{group}-blue")


@needs_promtool
@pytest.mark.requires("R33", "R120")
@pytest.mark.parametrize("name", ["quick", "small"])
def test_with_other_settings_failover_is_as_quiet_and_trouble_as_loud(tmp_path: Path, name: str) -> None:
    plan = PLANS[name]
    wanted = {
        *("the leader of every loop is killed and no alert fires", "a loop is led and does not tick"),
        *("no process leads a loop", "two lead a loop"),
    }
    chosen = [each for each in scenarios(plan) if each.name in wanted]
    assert len(chosen) == len(wanted)
    loops = next(each["name"] for each in rules_document(plan)["groups"] if "loops" in each["name"])
    proved(tmp_path, plan, chosen, loops)


@needs_promtool
@pytest.mark.requires("R33", "R96", "R139")
def test_what_is_written_out_by_hand_holds(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(yaml_text(rules_document(DEFAULT)), encoding="utf-8")
    by_hand = Path(__file__).with_name("alerts_by_hand.yaml").read_text(encoding="utf-8")
    (tmp_path / "tests.yml").write_text(by_hand, encoding="utf-8")
    promtool("test", "rules", str(tmp_path / "tests.yml"))
