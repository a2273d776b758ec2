"""Choose the versions that the Makefile installs, for every supported Python at once, and pin them in requirements/.

The versions come from whatever index the environment is set up for; the files name versions and hashes, never an
address.
`dev` is resolved first and constrains the others, so that one environment can hold all of them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST_PYTHON = "3.11"
OPTIONS = ["--universal", "--python-version", OLDEST_PYTHON, "--no-header", "--no-annotate", "--no-emit-index-url"]
OPTIONS += ["--generate-hashes"]  # of every file of a version: pip refuses one that is not as it was when it was chosen

# What each file holds: the extras and dependency groups of pyproject.toml.
LOCKS: dict[str, list[str]] = {
    "dev": ["--extra", "all", "--group", "dev"],
    "run": ["--extra", "cli", "--extra", "plane", "--group", "build"],
    "bench": ["--extra", "all", "--group", "bench"],
}

HEADER = """\
# Pinned for Python {python} and newer by `make lock`; do not edit.
# What is wanted, and why, is in pyproject.toml: {wanted}
"""


def resolve(name: str) -> str:
    """Run the resolver for one file and return its text, with our own header."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "pyproject.toml", *LOCKS[name], *OPTIONS]
    if name != "dev":
        command += ["--constraint", "requirements/dev.txt"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    pins = [line for line in done.stdout.splitlines() if line and not line.startswith("#")]
    return HEADER.format(python=OLDEST_PYTHON, wanted=" ".join(LOCKS[name])) + "\n".join(pins) + "\n"


def main() -> int:
    """Write every lock file."""
    for name in LOCKS:
        text = resolve(name)
        if "://" in text:
            print(f"requirements/{name}.txt would contain an address; not written", file=sys.stderr)
            return 1
        (ROOT / "requirements" / f"{name}.txt").write_text(text, encoding="utf-8")
        print(f"requirements/{name}.txt: {sum(line[:1].isalnum() for line in text.splitlines())} pins")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
