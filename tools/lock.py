"""Pin the versions that the Makefile installs, for every supported Python, in requirements/.

    python tools/lock.py              pin what pyproject.toml newly asks for; every other pin stays
    python tools/lock.py --upgrade    choose the newest version of everything

The versions come from whatever index the environment is set up for; the files name versions and hashes, never an
address. `dev` is resolved first and constrains `run` and `bench`, so that one environment can hold all three. `lowest`
is an environment of its own: the lowest version of each dependency that pyproject.toml allows, and the tools of
`dev`. `make test-lowest` runs the tests on it, so that a lower bound is a tested fact.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"
OLDEST_PYTHON = "3.11"
OPTIONS = ["--universal", "--python-version", OLDEST_PYTHON, "--no-header", "--no-annotate", "--no-emit-index-url"]
OPTIONS += ["--generate-hashes"]  # of every file of a version: pip refuses one that is not as it was when it was chosen

# What each file holds: the extras and dependency groups of pyproject.toml.
LOCKS: dict[str, list[str]] = {
    "dev": ["--extra", "all", "--group", "dev"],
    "run": ["--extra", "cli", "--extra", "plane", "--group", "build"],
    "bench": ["--extra", "all", "--group", "bench"],
    "lowest": ["--extra", "all", "--group", "dev", "--resolution", "lowest-direct"],
}

HEADER = """\
# Pinned for Python {python} and newer by `make lock`; do not edit.
# What is wanted, and why, is in pyproject.toml: {wanted}
"""


def requirement_name(requirement: str) -> str:
    """The normalized name of the distribution that a requirement asks for."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def declared() -> tuple[set[str], set[str]]:
    """Direct dependencies of the product, and the tools of its build, tests and checks."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras, groups = content["project"]["optional-dependencies"], content["dependency-groups"]
    product = {requirement_name(each) for extra in extras.values() for each in extra}
    return product, {requirement_name(each) for group in ("build", "test", "lint") for each in groups[group]} - product


def pins(name: str) -> dict[str, str]:
    """The text of each pin of a lock file, hashes included, by the name of its distribution."""
    path = FOLDER / f"{name}.txt"
    blocks = re.split(r"\n(?=\w)", path.read_text(encoding="utf-8")) if path.exists() else []
    found: dict[str, str] = {}
    for block in blocks:
        if block[:1].isalnum():  # a distribution has a pin for each condition
            found[requirement_name(block)] = found.get(requirement_name(block), "") + block.rstrip() + "\n"
    return found


def resolve(name: str, *, upgrade: bool) -> str:
    """Run the resolver for one file and return its text, with our own header."""
    product, tools = declared()
    kept = {} if upgrade else pins(name)
    if name == "lowest":  # a lower bound that was lowered is pinned again
        kept = {each: pin for each, pin in kept.items() if each not in product}
        constraints = {each: pin for each, pin in pins("dev").items() if each in tools}
    else:
        constraints = pins("dev") if name != "dev" else {}
    with tempfile.TemporaryDirectory() as folder:
        output, constraint = Path(folder, "pins.txt"), Path(folder, "constraints.txt")
        output.write_text("".join(kept.values()), encoding="utf-8")
        constraint.write_text("".join(constraints.values()), encoding="utf-8")
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "pyproject.toml", *LOCKS[name], *OPTIONS]
        command += ["--output-file", str(output), "--constraint", str(constraint)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        lines = output.read_text(encoding="utf-8").splitlines()
    text = "".join(f"{line}\n" for line in lines if line and not line.startswith("#"))
    return HEADER.format(python=OLDEST_PYTHON, wanted=" ".join(LOCKS[name])) + text


def main() -> int:
    """Write every lock file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--upgrade", action="store_true", help="choose the newest version of everything")
    upgrade = parser.parse_args().upgrade
    for name in LOCKS:
        text = resolve(name, upgrade=upgrade)
        if "://" in text:
            print(f"requirements/{name}.txt would contain an address; not written", file=sys.stderr)
            return 1
        (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")
        print(f"requirements/{name}.txt: {sum(line[:1].isalnum() for line in text.splitlines())} pins")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
