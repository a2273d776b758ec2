"""What happens to the engines of a plane while orders come in: they are killed, and they are replaced."""

from __future__ import annotations

from holdfast.cli.exit_codes import Exit
from support.fleet.fleet import until
from support.fleet.flow_fleet import FlowFleet
from support.fleet.flow_runs import Orders, check, signs


def kill_engines(it: FlowFleet, *goals: int) -> None:
    """Kill one engine after the other, each time when so many runs have ended. Others follow; nothing is done twice."""
    before = signs(it)
    with Orders(it, 7) as calm:
        pass
    check(it, calm.wanted)
    assert signs(it) == before, "nothing went wrong, and something came twice"
    with Orders(it, 14) as orders:
        for goal in goals:
            until(lambda: orders.over >= goal, "runs to be over")  # noqa: B023 - called immediately
            victim = it.engines[0]
            victim.kill()
            it.gone(victim)
            it.engine()
    for each in it.engines:
        each.ready()
    check(it, {**calm.wanted, **orders.wanted})


def replace_engines(it: FlowFleet, *goals: int) -> None:
    """Replace engines while runs continue, as a deployment does: when so many are over, an old one is told to end."""
    old = it.engines.copy()
    for _ in old:
        it.engine().ready()
    with Orders(it, 14) as orders:
        for goal, each in zip(goals, old, strict=True):
            until(lambda: orders.over >= goal, "runs to be over")  # noqa: B023 - called immediately
            assert each.terminate() == Exit.OK, each.log.read_text()
            it.gone(each)
    check(it, orders.wanted)
