"""The `holdfast` command: parsing, printing, calling. Every decision is made below.

Promises: one clear line on stderr (`holdfast: …`) and a documented exit code for everything that can go wrong, and no
traceback unless `HOLDFAST_DEBUG` is set. No token is ever printed: what is shown comes from `inspect` and `list`,
which do not know one. Needs the `cli` extra; without it, says so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        import rich
        import typer
    except ModuleNotFoundError:
        print('the command line needs: pip install "holdfast[cli]"', file=sys.stderr)
        return 2
    del rich, typer  # only asked whether they are there: the modules below import what they need
    from holdfast.cli.app import run_app

    return run_app(sys.argv[1:] if arguments is None else list(arguments))
