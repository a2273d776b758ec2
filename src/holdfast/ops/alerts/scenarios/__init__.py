"""Situations that alert rules must distinguish, as tests for `promtool test rules`: generated from the same settings.

    holdfast alerts --out rules.yml
    holdfast alerts --tests --rules rules.yml --out tests.yml
    promtool test rules tests.yml

Each scenario is a simulated fleet over time and the alerts that must fire at given moments: exactly those, no others.
Every alert has a scenario in which it fires. Normal events (a failover, a rolling restart, a short outage, a single
event, little traffic) have scenarios in which no alert pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.ops.alerts import alerts
from holdfast.ops.alerts.model import lasting
from holdfast.ops.alerts.plan import AlertPlan
from holdfast.ops.alerts.scenarios.causes import causes_of_trouble
from holdfast.ops.alerts.scenarios.firing import trouble, trouble_of_the_plane
from holdfast.ops.alerts.scenarios.quiet import calm
from holdfast.ops.alerts.scenarios.scenario import Scenario


def scenarios(plan: AlertPlan) -> Sequence[Scenario]:
    """The scenarios of a plane. A plane without a component has no alerts about it."""
    there = {each.name for each in alerts(plan)}
    found = (*calm(plan), *trouble(plan), *trouble_of_the_plane(plan), *causes_of_trouble(plan))
    return [each for each in found if all(there.issuperset(names) for names in each.firing.values())]


def tests_document(plan: AlertPlan, rule_file: str) -> dict[str, Any]:
    """The tests as promtool reads them. `rule_file` is the path of the rules, relative to the test file."""
    return {
        "rule_files": [rule_file],
        "evaluation_interval": lasting(plan.windows.seen_s),  # every other scrape: scenarios have larger margins
        "tests": [each.as_test() for each in scenarios(plan)],
    }
