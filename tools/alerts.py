"""The page about alert rules: the prose is kept, and the alerts in it are made from their declaration.

python tools/alerts.py            print the page
python tools/alerts.py --write    write docs/alerts.md
python tools/alerts.py --check    exit 1 if the page is not up to date
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from holdfast.ops.alerts import groups
from holdfast.ops.alerts.model import RUNBOOKS, Alert, lasting, plainly
from holdfast.ops.alerts.plan import Plan
from holdfast.plane.settings.settings import Settings
from pages import ROOT

PAGE = ROOT / "docs" / "alerts.md"
BEGIN = "<!-- alerts: made by `make docs`; do not edit -->\n"
END = "<!-- end of alerts -->\n"
TITLES = {
    "holdfast-ownership": "Who owns what",
    "holdfast-contention": "Waiting",
    "holdfast-renewal": "Keeping leases",
    "holdfast-loops": "Loops and takeovers",
    "holdfast-takeovers": "Takeovers of jobs",
    "holdfast-store": "The lease store and the error policy",
    "holdfast-processes": "Processes",
}


def listed() -> str:
    """Every alert: what it means, its threshold with the default settings and why, and what to run next."""
    plan = Plan(Settings(database="sqlite:///plane.db"))
    lines: list[str] = []
    for group in groups(plan):
        lines += [f"### {TITLES[group.name]}", ""]
        lines += ["| alert | severity | for | what it means | threshold | next |", "|---|---|---|---|---|---|"]
        named: dict[str, list[Alert]] = {}
        for alert in group.alerts:
            named.setdefault(alert.name, []).append(alert)
        lines += [_row(each) for each in named.values()]
        lines.append("")
    return "\n".join(lines)


def _row(alerts: Sequence[Alert]) -> str:
    first = alerts[0]
    severity = "page" if any(each.severity == "page" for each in alerts) else "ticket"
    holds = {lasting(each.hold_s) if each.hold_s else "at once" for each in alerts}
    shortest = min(alerts, key=lambda each: each.hold_s)
    hold = lasting(shortest.hold_s) if len(holds) > 1 else holds.pop()
    more = " and more" if len(holds) > 1 else ""
    runbooks = dict.fromkeys(each.runbook for each in alerts)
    links = ", ".join(f"[{each}]({RUNBOOKS.removeprefix('docs/')}#{each})" for each in runbooks)
    meaning = f"{plainly(first.summary)}. {plainly(first.description)}"
    cells = (f"`{first.name}`", severity, hold + more, meaning, " ".join(_thresholds(alerts)), links)
    return f"| {' | '.join(each.replace('|', '/').replace('<', '&lt;') for each in cells)} |"


def _thresholds(alerts: Sequence[Alert]) -> Iterator[str]:
    """Those that are the same are said once."""
    said: dict[str, list[str]] = {}
    for each in alerts:
        said.setdefault(each.because, []).extend(each.labels.values())
    for because, owners in said.items():
        yield f"*{', '.join(owners)}*: {because}" if len(said) > 1 else because


def render() -> str:
    """The whole page."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.name} has lost the lines between which the alerts stand")
    return f"{before}{BEGIN}\n{listed()}\n{END}{after}"


def main() -> None:
    """Print, write or check the page."""
    if "--write" in sys.argv[1:]:
        PAGE.write_text(render(), encoding="utf-8")
    elif "--check" in sys.argv[1:]:
        if PAGE.read_text(encoding="utf-8") != render():
            raise SystemExit("docs/alerts.md is not up to date: run `make docs`")
    else:
        print(render(), end="")


if __name__ == "__main__":
    main()
