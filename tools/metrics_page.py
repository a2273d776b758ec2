"""The page about metrics: what to look at and how to get at it, and the table, made from their declaration.

python tools/metrics_page.py            print the page
python tools/metrics_page.py --write    write docs/metrics.md
"""

from __future__ import annotations

import sys

from holdfast.observe.metrics.samples import markdown
from pages import ROOT

PAGE = ROOT / "docs" / "metrics.md"

PROSE = ROOT / "tools" / "metrics_page.md"


def render() -> str:
    """The whole page."""
    return f"{PROSE.read_text(encoding='utf-8')}\n{markdown()}"


def main() -> None:
    """Print or write the page."""
    if "--write" in sys.argv[1:]:
        PAGE.write_text(render(), encoding="utf-8")
    else:
        print(render(), end="")


if __name__ == "__main__":
    main()
