"""The threats of docs/security.md: which tests show each defended, and what is missing, in words.

The page is written by hand, up to the table between two comments; that is made from `tools/threats.toml` and the marks
`@pytest.mark.threat("X4")` of the tests.

    python tools/threats.py            one line for each threat
    python tools/threats.py X4         everything that shows it defended
    python tools/threats.py --write    write the table into docs/security.md
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass

from marks import BadMarker, marked
from pages import ROOT

PAGE = ROOT / "docs" / "security.md"
SHOWN_MAX = 3  # tests named on the page for each threat; the command shows all

BEGIN, END = "<!-- threats: made by `make docs` -->", "<!-- end of threats -->"

Proofs = Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class Threat:
    """One thing that must not happen."""

    id: str
    threat: str
    defence: str
    missing: str = ""


def threats() -> dict[str, Threat]:
    """All threats by id, in order."""
    table = tomllib.loads((ROOT / "tools" / "threats.toml").read_text(encoding="utf-8"))
    return {key: Threat(key, **row) for key, row in table.items()}


def collect() -> dict[str, list[str]]:
    """The tests of each threat, or `BadMarker` for a mark that names none."""
    proofs: dict[str, list[str]] = {key: [] for key in threats()}
    for proof, ids in marked(ROOT, "threat"):
        for each in ids:
            if each not in proofs:
                raise BadMarker(f"{proof} names {each}, which is not in tools/threats.toml")
            proofs[each].append(proof)
    return proofs


def table(proofs: Proofs) -> str:
    """The table of the page."""
    head = ["| id | threat | defence | tests | not there |", "|---|---|---|---|---|"]
    return "\n".join([*head, *(_row(each, proofs[each.id]) for each in threats().values())])


def _row(threat: Threat, proofs: list[str]) -> str:
    shown = [f"`{each.removeprefix('tests/')}`" for each in proofs[:SHOWN_MAX]]
    if len(proofs) > SHOWN_MAX:
        shown.append(f"and {len(proofs) - SHOWN_MAX} more")
    return f"| {threat.id} | {threat.threat} | {threat.defence} | {'<br>'.join(shown)} | {threat.missing} |"


def render(proofs: Proofs) -> str:
    """The page with its regenerated table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table(proofs)}\n\n{END}{rest.partition(END)[2]}"


def main(arguments: list[str] | None = None) -> int:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description="Which tests show which threat defended.")
    parser.add_argument("ids", nargs="*", metavar="ID", help="show every test of these")
    parser.add_argument("--write", action="store_true", help="write the table into docs/security.md")
    options = parser.parse_args(arguments)
    known, proofs = threats(), collect()
    if unknown := [each for each in options.ids if each not in known]:
        print(f"no such threat: {' '.join(unknown)}", file=sys.stderr)
        return 2
    if options.write:
        PAGE.write_text(render(proofs), encoding="utf-8")
    for each in options.ids:
        print(f"{each} {known[each].threat}", *(f"  {proof}" for proof in proofs[each]), sep="\n")
    if not options.ids:
        print(*(f"{each} {len(found)} tests: {known[each].threat}" for each, found in proofs.items()), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
