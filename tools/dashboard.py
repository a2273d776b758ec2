"""The page about the dashboard: the prose is kept, and the list of panels in it is made from their declaration.

python tools/dashboard.py            print the page
python tools/dashboard.py --write    write docs/dashboard.md
python tools/dashboard.py --check    exit 1 if the page is not up to date
"""

from __future__ import annotations

import sys

from holdfast.ops.dashboard.layout import rows
from holdfast.plane.settings.settings import Settings
from pages import ROOT

PAGE = ROOT / "docs" / "dashboard.md"
BEGIN = "<!-- panels: made by `make docs`; do not edit -->\n"
END = "<!-- end of panels -->\n"


def panels() -> str:
    """Every row with its panels, and what each says with the default settings."""
    lines: list[str] = []
    for row in rows(Settings(database="sqlite:///plane.db")):
        lines += [f"### {row.title}", "", row.question, "", "| panel | what it says, and what to do |", "|---|---|"]
        lines += [f"| {panel.title} | {panel.text} |" for panel in row.panels]
        lines.append("")
    return "\n".join(lines)


def render() -> str:
    """The whole page."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.name} has lost the lines between which the panels stand")
    return f"{before}{BEGIN}\n{panels()}\n{END}{after}"


def main() -> None:
    """Print, write or check the page."""
    if "--write" in sys.argv[1:]:
        PAGE.write_text(render(), encoding="utf-8")
    elif "--check" in sys.argv[1:]:
        if PAGE.read_text(encoding="utf-8") != render():
            raise SystemExit("docs/dashboard.md is not up to date: run `make docs`")
    else:
        print(render(), end="")


if __name__ == "__main__":
    main()
