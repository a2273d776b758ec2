"""The tables of stores in README.md and docs, from `tools/stores.toml`, `network_faults.toml` and the engines.

    python tools/store_tables.py            print the tables
    python tools/store_tables.py --write    write them between their marks in the pages

What code can say comes from code: the guarantee and the other claims from the engine's `Capabilities`, and the checks
that prove a claim from the conformance kit. A new store is one entry in `tools/stores.toml`.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from typing import Any, Final

from holdfast.core.ports import Capabilities
from holdfast.stores.registry import open_engine
from holdfast.testing.conformance import Claim, checks_for, proofs
from pages import ROOT

README = ROOT / "README.md"
PAGE = ROOT / "docs" / "guarantees.md"
DATA = ROOT / "tools" / "stores.toml"
LOCAL = ("memory", "SQLite")
FAULTS_PAGE = ROOT / "docs" / "stores" / "network-faults.md"
FAULTS = ROOT / "tools" / "network_faults.toml"

Cell = Callable[[dict[str, str], Capabilities], str]


def _yes(claim: bool) -> str:
    return "yes" if claim else "no"


ROWS: Final[dict[str, Cell]] = {
    "excludes": lambda store, _: store["shared"],
    "guarantee at best": lambda _, claims: f"`{claims.guarantee}`",
    "lowered by ([`holdfast doctor`](doctor.md))": lambda store, _: store["lowered"],
    "expiry is judged by": lambda store, _: store["clock"],
    "survives a restart of the engine": lambda store, _: store["survives"],
    "fence comes from": lambda store, _: store["fence"],
    "fence after losing everything": lambda store, _: store["after_loss"],
    "wakes waiters on release": lambda store, _: store["wakes"],
    "fair queue on demand": lambda _, claims: _yes(claims.fair),
    "many locks in one request": lambda _, claims: _yes(claims.many),
    "a dead holder is detected": lambda store, _: store["dead_holder"],
    "acquire, release": lambda store, _: store["cost"],
    "excludes other libraries": lambda store, _: store["others"],
    "checks of the conformance kit": lambda _, claims: str(len(checks_for(claims))),
}


def stores() -> list[tuple[dict[str, str], Capabilities]]:
    """Each entry with the claims of its engine. Nothing is connected."""
    found: list[tuple[dict[str, str], Capabilities]] = []
    for entry in tomllib.loads(DATA.read_text(encoding="utf-8"))["store"]:
        engine: Any = open_engine(entry["url"])
        found.append((entry, engine.capabilities))
    return found


def readme_table() -> str:
    """The table of the README."""
    lines = ["| Store | URL | Shared between | Survives restart | Wake-ups | Extra |", "|---|---|---|---|---|---|"]
    for entry, claims in stores():
        wakes = entry["wakes"].partition(",")[0] if claims.wakeups else "no"
        if entry["name"] == "SQLite":
            wakes = "yes (polling outside of Linux)"
        extra = f"`{entry['extra']}`" if entry["extra"] else ""
        lines.append(
            f"| {entry['title']} | {entry['urls']} | {entry['shared']} | {entry['restart']} | {wakes} | {extra} |"
        )
    return "\n".join(lines)


def guarantee_table() -> str:
    """The table of docs/guarantees.md."""
    known = stores()
    lines = ["| | " + " | ".join(entry["name"] for entry, _ in known) + " |", "|---" * (len(known) + 1) + "|"]
    for title, cell in ROWS.items():
        lines.append(f"| {title} | " + " | ".join(cell(entry, claims) for entry, claims in known) + " |")
    return "\n".join(lines)


def claims_table() -> str:
    """Which checks prove which claim."""
    lines = ["| Claim | Made by | Proven by |", "|---|---|---|"]
    for claim, sentences in proofs().items():
        makers = [entry["name"] for entry, claims in stores() if claim.made_by(claims)]
        made = "all" if len(makers) == len(stores()) else "; ".join(makers)
        lines.append(f"| `{claim}` | {made} | {'<br>'.join(sentences)} |")
    assert len(lines) == len(Claim) + 2
    return "\n".join(lines)


def network_faults() -> list[dict[str, str]]:
    """Each fault of the network with its outcomes."""
    found: list[dict[str, str]] = tomllib.loads(FAULTS.read_text(encoding="utf-8"))["fault"]
    return found


def faults_table() -> str:
    """How an acquire ends during each fault, on each store with a network."""
    names = [entry["name"] for entry, _ in stores() if entry["name"] not in LOCAL]
    lines = ["| Fault | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for fault in network_faults():
        cells = (fault.get(name, fault["outcome"]) for name in names)
        lines.append(f"| {fault['name']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def faults_list() -> str:
    """What each fault is, and what holds after it."""
    lines = ["| Fault | What happens | Afterwards |", "|---|---|---|"]
    lines += [f"| {fault['name']} | {fault['how']} | {fault['then']} |" for fault in network_faults()]
    return "\n".join(lines)


TABLES: Final = {
    (README, "stores"): readme_table,
    (PAGE, "per store"): guarantee_table,
    (PAGE, "claims"): claims_table,
    (FAULTS_PAGE, "outcomes"): faults_table,
    (FAULTS_PAGE, "faults"): faults_list,
}


def written(text: str, name: str, table: str) -> str:
    """A page with a new table between its marks."""
    begin, end = f"<!-- {name}: made by tools/store_tables.py -->\n", f"\n<!-- /{name} -->"
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no marks for {name!r}")
    return head + begin + table + end + tail


def main() -> None:
    """Print or write."""
    for (page, name), table in TABLES.items():
        if "--write" in sys.argv[1:]:
            page.write_text(written(page.read_text(encoding="utf-8"), name, table()), encoding="utf-8")
        else:
            print(table())


if __name__ == "__main__":
    main()
