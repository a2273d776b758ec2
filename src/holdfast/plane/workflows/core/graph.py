"""The dependency graph of a definition: cycles, and steps that are certain to precede others. Pure.

A step waits for each step in its `after` until that is *decided*: finished, and if it failed, until its handler is
decided too. A handler waits for a step that it handles. A cycle in this graph can never start.

A step is certain to be finished when another starts if every way in which that one can start includes it: with a `join`
of k out of n, if it is finished before more than n - k of the n. A handler knows that the step that it handles has
finished, if it handles only one. A step that waits for another knows the same of that step's own handler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from holdfast.plane.workflows.core.definition import Workflow

T = TypeVar("T")
_Node: TypeAlias = tuple[str, bool]  # a step; True: until it is decided


def handled_by(workflow: Workflow) -> Mapping[str, list[str]]:
    """The existing steps that each handler handles."""
    found: dict[str, list[str]] = {}
    for name, step in workflow.steps.items():
        if step.on_error in workflow.steps:
            found.setdefault(str(step.on_error), []).append(name)
    return found


def waiting_circles(workflow: Workflow) -> list[list[str]]:
    """Steps that wait for themselves through `after` alone, one cycle for each component."""
    edges = {name: [each for each in step.after if each in workflow.steps] for name, step in workflow.steps.items()}
    return _circles(edges)


def handling_circles(workflow: Workflow) -> list[list[str]]:
    """Steps that wait for themselves through a handler."""
    found = []
    for circle in _circles(_waits(workflow)):
        names = [name for place, (name, _) in enumerate(circle) if not place or circle[place - 1][0] != name]
        found.append(names[:-1] if len(names) > 1 and names[0] == names[-1] else names)
    return found


def certain(workflow: Workflow) -> Mapping[str, frozenset[str]]:
    """For each step, the steps that are certain to be finished when it starts. Omits steps in or behind a cycle."""
    names = list(workflow.steps)
    bit = {name: 1 << place for place, name in enumerate(names)}
    handled = handled_by(workflow)
    known: dict[str, int] = {}
    for name, decided in _order(_waits(workflow))[0]:
        if decided:
            continue
        step = workflow.steps[name]
        after = [each for each in dict.fromkeys(step.after) if each in bit]
        missing = 0 if step.join is None else max(0, len(after) - step.join)
        reached = [known[each] | bit[each] | _own_handlers(workflow, handled, bit, each) for each in after]
        known[name] = _in_at_least(missing + 1, reached)
        if name in handled:
            common = [known[each] | bit[each] for each in handled[name]]
            known[name] |= _in_at_least(len(common), common)
    return {name: frozenset(each for each in names if bit[each] & mask) for name, mask in known.items()}


def _own_handlers(workflow: Workflow, handled: Mapping[str, list[str]], bit: Mapping[str, int], name: str) -> int:
    mask = 0
    handler = workflow.steps[name].on_error
    while handler in bit and handled[str(handler)] == [name] and not mask & bit[str(handler)]:
        mask |= bit[str(handler)]
        name, handler = str(handler), workflow.steps[str(handler)].on_error
    return mask


def _in_at_least(need: int, masks: Iterable[int]) -> int:
    """The bits that are set in at least `need` of the masks, counted for all bits at the same time."""
    planes: list[int] = []  # the binary digits of the counts, the lowest first
    everything = 0
    for mask in masks:
        everything |= mask
        carry = mask
        for place, plane in enumerate(planes):
            planes[place], carry = plane ^ carry, plane & carry
        if carry:
            planes.append(carry)
    more, equal = 0, everything
    for place in reversed(range(max(len(planes), need.bit_length()))):
        plane = planes[place] if place < len(planes) else 0
        if need >> place & 1:
            equal &= plane
        else:
            more |= equal & plane
            equal &= ~plane
    return more | equal


def _waits(workflow: Workflow) -> dict[_Node, list[_Node]]:
    steps = workflow.steps
    handled = handled_by(workflow)
    edges: dict[_Node, list[_Node]] = {}
    for name, step in steps.items():
        waits = [(each, True) for each in step.after if each in steps]
        edges[name, False] = waits + [(each, False) for each in handled.get(name, ())]
        handler = [(step.on_error, True)] if step.on_error in steps else []
        edges[name, True] = [(name, False), *((str(each), decided) for each, decided in handler)]
    return edges


def _order(edges: Mapping[T, Sequence[T]]) -> tuple[list[T], dict[T, list[T]]]:
    """A topological order of the nodes, and the remaining nodes, which are in or behind a cycle."""
    left = {node: len(set(waits)) for node, waits in edges.items()}
    waited: dict[T, list[T]] = {node: [] for node in edges}
    for node, waits in edges.items():
        for each in dict.fromkeys(waits):
            waited[each].append(node)
    order = [node for node, count in left.items() if not count]
    for node in order:  # grows during the iteration
        for each in waited[node]:
            left[each] -= 1
            if not left[each]:
                order.append(each)
    behind = {node for node, count in left.items() if count}
    return order, {node: [each for each in edges[node] if each in behind] for node in edges if node in behind}


def _circles(edges: Mapping[T, Sequence[T]]) -> list[list[T]]:
    """Disjoint cycles, until every remaining cycle shares a node with one of them."""
    found = []
    _, left = _order(edges)
    while left:
        node = next(iter(left))
        way: dict[T, int] = {}
        while node not in way:
            way[node] = len(way)
            node = left[node][0]
        circle = list(way)[way[node] :]
        found.append(circle)
        gone = set(circle)
        _, left = _order(
            {each: [other for other in waits if other not in gone] for each, waits in left.items() if each not in gone}
        )
    return found
