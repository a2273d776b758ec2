"""Installs, or checks, a guard in a process of its own; dies where it is told to."""

from __future__ import annotations

import os
import sys

from holdfast.core import failpoints
from holdfast.guards import install


def main(act: str, url: str, mode: str) -> None:
    sys.stdin.readline()  # all start together
    if act == "check":
        with failpoints.armed("guard.written", lambda: os._exit(9)):
            install.check(url, "invoices")
        return
    for _ in range(3):
        install.install(url, "invoices", trigger=mode)
        if act == "churn":
            install.remove(url, "invoices")
    install.install(url, "invoices", trigger=mode)


if __name__ == "__main__":
    main(*sys.argv[1:])
