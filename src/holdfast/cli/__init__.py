"""The `holdfast` command: parses, calls the library and prints. All decisions are made in the packages below.

Promises: every failure prints one clear line on stderr (`holdfast: …`) and has a documented exit code. There is no
traceback unless `HOLDFAST_DEBUG` is set. No token is ever printed: all output comes from `inspect` and `list`, which
return none. Needs the `cli` extra, and names it if it is missing.
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
    del rich, typer  # only an availability check: the modules below import what they need
    from holdfast.cli.app import run_app

    return run_app(sys.argv[1:] if arguments is None else list(arguments))
