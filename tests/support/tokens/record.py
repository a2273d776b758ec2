"""Writes down every lease token that a process is given, so that a test can look for them where they must not be.

Entropy also makes ids, which may be shown; a token is what the flows of leases and the resource locks ask for. A
process that has `token_site` on its path does so from its first line, and so does every Python that it starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from holdfast.runtime.system import SystemEntropy

_for_good = ExitStack()
OF_LEASES = ("holdfast.flows.", "holdfast.plane.resources.locks")


@contextmanager
def recording(note: Callable[[str], object]) -> Iterator[None]:
    """Tell every token that this process is given while the block runs."""
    given = SystemEntropy.token

    def token(self: SystemEntropy) -> str:
        made = given(self)
        if sys._getframe(1).f_globals["__name__"].startswith(OF_LEASES):
            note(made)
        return made

    SystemEntropy.token = token  # type: ignore[method-assign] # that is the point of it
    try:
        yield
    finally:
        SystemEntropy.token = given  # type: ignore[method-assign] # as above


def _append(token: str) -> None:
    with Path(os.environ["TOKENS_FILE"]).open("a", encoding="ascii") as file:
        file.write(f"{token}\n")


def begin() -> None:
    """Write them to the file that `$TOKENS_FILE` names, from now on."""
    _for_good.enter_context(recording(_append))
