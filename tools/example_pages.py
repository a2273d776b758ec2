"""The pages of the examples: the code on them is that of the files in examples/, word for word.

    python tools/example_pages.py            # says which pages are out of date
    python tools/example_pages.py --write

Before each block a comment names its file:
`<!-- no-run: examples/crawl.py, run by tests/unit/plane/test_examples.py -->`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "examples"

_SHOWN = re.compile(
    r"(?P<head><!-- no-run: (?P<file>examples/[\w.]+),[^\n]*-->\n```(?:python|yaml)\n)(?P<code>.*?)(?P<tail>^```$)",
    re.MULTILINE | re.DOTALL,
)


def pages() -> list[Path]:
    """Every page, in a stable order."""
    return sorted(PAGES.glob("*.md"))


def shown(page: Path) -> list[str]:
    """The files whose code a page shows."""
    return [found["file"] for found in _SHOWN.finditer(page.read_text(encoding="utf-8"))]


def render(page: Path) -> str:
    """A page with the code of today."""

    def fresh(found: re.Match[str]) -> str:
        return found["head"] + (ROOT / found["file"]).read_text(encoding="utf-8") + found["tail"]

    return _SHOWN.sub(fresh, page.read_text(encoding="utf-8"))


def main() -> None:
    """Write the pages, or say which ones should be."""
    for page in pages():
        if (text := render(page)) != page.read_text(encoding="utf-8"):
            print(page.relative_to(ROOT))
            if "--write" in sys.argv[1:]:
                page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
