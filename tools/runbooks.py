"""Generates docs/runbooks.md from the declarations of the runbooks.

python tools/runbooks.py            print the page
python tools/runbooks.py --write    write docs/runbooks.md
python tools/runbooks.py --check    exit 1 if docs/runbooks.md is not up to date
"""

from __future__ import annotations

import sys

from holdfast.ops.runbooks.page import page
from pages import ROOT

PAGE = ROOT / "docs" / "runbooks.md"


def render() -> str:
    """The whole page."""
    return page()


def main() -> None:
    """Print, write or check the page."""
    if "--write" in sys.argv[1:]:
        PAGE.write_text(render(), encoding="utf-8")
    elif "--check" in sys.argv[1:]:
        sys.exit(PAGE.read_text(encoding="utf-8") != render() and f"{PAGE.name} is not up to date: run `make docs`")
    else:
        print(render(), end="")


if __name__ == "__main__":
    main()
