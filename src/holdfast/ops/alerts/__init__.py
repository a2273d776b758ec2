"""All alert rules of a plane, generated from its lock registry, its settings and its error policy.

    groups(Plan(settings))

Promises: every metric and label in a rule is declared in `observe.metrics.table`. Every threshold names the setting
that it follows from. Normal failover pages no one: a leader is replaced, a process is killed, a fleet restarts one
process at a time, the store is down for half a minute. `alerts.scenarios` lets promtool prove this for any settings.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.ops.alerts.model import Alert, RuleGroup
from holdfast.ops.alerts.plan import AlertPlan
from holdfast.ops.alerts.rules.causes import causes
from holdfast.ops.alerts.rules.contention import contention
from holdfast.ops.alerts.rules.loops import loops
from holdfast.ops.alerts.rules.ownership import ownership
from holdfast.ops.alerts.rules.processes import processes
from holdfast.ops.alerts.rules.renewal import renewal
from holdfast.ops.alerts.rules.store import store
from holdfast.ops.alerts.rules.takeovers import takeovers


def groups(plan: AlertPlan) -> Sequence[RuleGroup]:
    """The rule groups."""
    about_work = (ownership(plan), contention(plan), renewal(plan), loops(plan), takeovers(plan))
    found = (*about_work, store(plan), processes(plan), causes(plan))
    names = plan.settings.names.words
    return [RuleGroup(each.name, [rule.under(names) for rule in each.rules]) for each in found if each.rules]


def alerts(plan: AlertPlan) -> Sequence[Alert]:
    """The alerts alone, in the order of their groups. Several alerts may share a name, with different thresholds."""
    return [alert for group in groups(plan) for alert in group.alerts]
