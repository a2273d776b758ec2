"""The bugs that our own tests, drills and simulations found in our own code, each with the command that shows it.

The page docs/track-record.md is written by hand, up to the tables between two comments; those are made from
`tools/track_record.toml`, where a bug is one declaration.

    python tools/track_record.py              one line for each bug
    python tools/track_record.py --write      write the tables into docs/track-record.md
    python tools/track_record.py --show ID    run its test on the code before the fix; exit with 0 if the bug shows
    python tools/track_record.py --show ID --control    and on the code of the fix, where it must pass

`--show` exits with 0 when the bug shows, 1 when it does not, 2 when it cannot be tried: it needs git and the history.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

from pages import ROOT
from track_replay import WHOLE, Case, NoHistory, Verdict, control, show, tail

PAGE = ROOT / "docs" / "track-record.md"
ENTRIES = ROOT / "tools" / "track_record.toml"
BEGIN, END = "<!-- track record: made by `make docs` -->", "<!-- end of track record -->"
AREAS = ("Leases", "Stores", "Guards", "The plane", "HTTP and commands", "Operations", "Testing kit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One bug of ours."""

    id: str
    area: str  # one of AREAS
    symptom: str  # what a user would have seen, in a sentence
    found: str  # by what
    mechanism: str  # what was wrong, and so what kind of bug it is
    fix: str  # the commit, or the beginning of its subject; "": in the working tree, not committed yet
    test: str  # the test that catches it today, as a node id
    then: tuple[str, ...] = ()  # its names in the fix, where it had others
    before: str = ""  # the commit that is shown to have it, if not the one before the fix
    tests_of: str = ""  # the commit whose tests show it, where they are younger than the fix
    take: tuple[str, ...] = WHOLE  # what is laid over the older code
    own: tuple[str, ...] = ()  # files of today's tree that are laid over it besides: tests that were written for this
    own_of: str = ""  # the commit that has them, from before modules that they import moved
    sign: str = ""  # a regular expression that the failing run must print
    seen: str = ""  # how it failed when it was last shown, in a few words
    needs: str = ""  # what the command needs besides the packages of the tests
    cannot: str = ""  # why no command shows it on an older commit

    @property
    def command(self) -> str:
        """What to type."""
        if self.cannot:
            return f"python -m pytest {self.test!r}" if "[" in self.test else f"python -m pytest {self.test}"
        return f"python tools/track_record.py --show {self.id}"

    @property
    def case(self) -> Case:
        """What is run."""
        tests = self.then or (self.test,)
        return Case(self.fix, self.before, self.tests_of, tests, self.take, self.own, self.sign, self.own_of)


def bugs() -> list[Bug]:
    """All of them, in the order of their declaration."""
    table = tomllib.loads(ENTRIES.read_text(encoding="utf-8"))
    return [_bug(id_, row) for id_, row in table.items()]


def _bug(id_: str, row: dict[str, object]) -> Bug:
    lists = {name: tuple(value) for name, value in row.items() if isinstance(value, list)}
    return Bug(id=id_, **{**row, **lists})  # type: ignore[arg-type]  # a test looks at every field


def tables() -> str:
    """The tables of the page, by area."""
    known = bugs()
    shown = sum(bool(bug.seen) for bug in known)
    apart = [bug for bug in known if bug.cannot]
    lines = [
        f"{len(known)} bugs. {shown} were shown again by the command beside them, on the code before their fix;",
        f"{len(apart)} cannot be, and say why.",
    ]
    for area in AREAS:
        some = [bug for bug in known if bug.area == area]
        if some:
            lines += ["", f"### {area}", "", "| bug | found by | what was wrong | fixed in | shown by |"]
            lines += ["|---|---|---|---|---|", *map(_row, some)]
    return "\n".join(lines)


def _row(bug: Bug) -> str:
    fixed = f"`{bug.fix}`" if re.fullmatch(r"[0-9a-f]{7,40}", bug.fix) else bug.fix or "not committed yet"
    if bug.cannot:
        how = f"{bug.cannot} The test that catches it now: `{bug.command}`"
    else:
        seen = f"it failed with: {bug.seen}" if bug.seen else "not tried yet"
        how = f"`{bug.command}`{f' (needs {bug.needs})' if bug.needs else ''}; {seen}. Test: `{bug.test}`"
    cells = (f"**{bug.id}**. {bug.symptom}", bug.found, bug.mechanism, fixed, how)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def render() -> str:
    """The page with its regenerated tables."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{rest.partition(END)[2]}"


def shown(bug: Bug, *, with_control: bool) -> int:
    """Run it, say what was seen, and return the exit code."""
    if bug.cannot:
        print(f"{bug.id} cannot be shown on an older commit. {bug.cannot}\nThe test of today: {bug.command}")
        return 2
    try:
        found = show(bug.case)
        print(f"{bug.id} on {found.commit}: {found.verdict}")
        print(f"    {found.line}" if found.verdict is Verdict.SHOWN else tail(found.output))
        if found.verdict is Verdict.SHOWN and with_control:
            after = control(bug.case)
            print(f"{bug.id} on {after.commit}: {'fixed' if after.verdict is Verdict.PASSED else 'STILL FAILING'}")
            if after.verdict is not Verdict.PASSED:
                print(tail(after.output))
                return 2
    except NoHistory as error:
        print(f"{bug.id} cannot be shown here: {error}")
        return 2
    return {Verdict.SHOWN: 0, Verdict.PASSED: 1, Verdict.OTHER: 2}[found.verdict]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print or write the tables, or show a bug."""
    parser = argparse.ArgumentParser(description="The bugs that we found in our own code.")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/track-record.md")
    parser.add_argument("--show", metavar="ID", help="run its test on the code before the fix")
    parser.add_argument("--control", action="store_true", help="with --show: and on the code of the fix")
    chosen = parser.parse_args(arguments)
    if chosen.show:
        known = {bug.id: bug for bug in bugs()}
        if chosen.show not in known:
            parser.error(f"there is no bug {chosen.show!r}; there are: {', '.join(known)}")
        return shown(known[chosen.show], with_control=chosen.control)
    if chosen.write:
        PAGE.write_text(render(), encoding="utf-8")
    else:
        for bug in bugs():
            print(f"{bug.id:44} {bug.fix or '-':10} {bug.symptom}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
