"""A change of many jobs: shows how many match, asks, changes them with progress, and counts the outcomes.

Promises: nothing is changed before the confirmation, or with `--dry-run`. After Ctrl-C or a store error, each
job is either changed or not, and a line kinds how many changes were made. The same command continues. Clock: none.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import typer

from holdfast.cli.exit_codes import Exit
from holdfast.cli.output.screen import cell, out, print_note, put_json, put_none
from holdfast.errors import BadInput, HoldfastError, RowMissing

if TYPE_CHECKING:
    from holdfast.plane.service.selection import BulkItem, BulkSelection

CONCURRENT: Final = 20
SHOWN: Final = 10

Change = Callable[["BulkItem"], Awaitable[bool]]


async def change_all(
    selection: BulkSelection,
    change: Change,
    *,
    what: str,
    ask: str,
    done: str,
    unchanged: str,
    yes: bool,
    dry: bool,
    json: bool,
) -> Exit:
    """Apply `change` to every selected job; it returns whether it changed anything."""
    if dry:
        _preview(selection, what, json=json)
        return Exit.OK
    if not selection.items:
        if json:
            put_json({"matched": 0, "changed": 0, "unchanged": 0, "more": False})
        else:
            put_none(what)
        return Exit.OK
    print_note(_count(selection, what))
    if not yes:
        _confirm(ask)
    changed, passed = await _apply(selection, change, done)
    if json:
        summary = {"matched": len(selection.items), "changed": changed, "unchanged": passed, "more": selection.more}
        put_json(summary)
    else:
        rest = f", {passed} {unchanged}" if passed else ""
        out().print(cell(f"{done}: {changed} of {len(selection.items)} {what}{rest}"))
        if selection.more:
            print_note("more match: run the same command again, or raise --limit")
    return Exit.OK


async def _apply(selection: BulkSelection, change: Change, done: str) -> tuple[int, int]:
    """How many were changed, and how many did not need it."""
    items, outcomes = selection.items, Counter[bool]()
    try:
        for start in range(0, len(items), CONCURRENT):
            some = [_one(change, each) for each in items[start : start + CONCURRENT]]
            answers = await asyncio.gather(*some, return_exceptions=True)
            outcomes.update(each for each in answers if isinstance(each, bool))
            failed = next((each for each in answers if isinstance(each, BaseException)), None)
            if failed is not None:
                raise failed
            if sys.stderr.isatty():
                print(f"\r{done}: {sum(outcomes.values())}/{len(items)}", end="", file=sys.stderr, flush=True)
        if sys.stderr.isatty():
            print(file=sys.stderr)
    except (HoldfastError, asyncio.CancelledError):
        print_note(
            f"{done}: {outcomes[True]} of {len(items)}, then it stopped; run the same command again for the others"
        )
        raise
    return outcomes[True], outcomes[False]


async def _one(change: Change, each: BulkItem) -> bool:
    try:
        return await change(each)
    except RowMissing:  # deleted since it was selected
        return False


def _confirm(ask: str) -> None:
    if not sys.stdin.isatty():
        raise BadInput("--yes", "is missing, and there is no terminal for confirmation", "add --yes, or --dry-run")
    typer.confirm(ask, abort=True, err=True)


def _preview(selection: BulkSelection, what: str, *, json: bool) -> None:
    if json:
        items = [
            {"id": each.id, "tenant": each.tenant, "topic": each.topic, "kind": each.kind} for each in selection.items
        ]
        put_json({"matched": len(items), "more": selection.more, "items": items})
        return
    if not selection.items:
        put_none(what)
        return
    out().print(cell(_count(selection, what)), soft_wrap=True)
    for each in selection.items[:SHOWN]:
        out().print(cell(f"  {each.id}  {each.topic} of {each.tenant}, {each.kind}"), soft_wrap=True)
    if len(selection.items) > SHOWN:
        out().print(cell(f"  and {len(selection.items) - SHOWN} more", "dim"))


def _count(selection: BulkSelection, what: str) -> str:
    kinds = Counter(each.kind for each in selection.items)
    parts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return f"{len(selection.items)}{' or more' if selection.more else ''} {what} match: {parts}"
