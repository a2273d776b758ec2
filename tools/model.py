"""The model of leases and fences (models/lease.pml) put through Spin, in every variant that docs/model.md speaks of.

python tools/model.py                 three clients and five grants, and the split brain: some minutes
python tools/model.py --small         two clients and three grants: seconds
python tools/model.py --write         and write the figures into docs/model.md
python tools/model.py --json          the same for programs

Needed: `spin` and a C compiler (Debian: packages spin and gcc). Exit code 1: a variant did not come out as it must.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
MODEL: Final = ROOT / "models" / "lease.pml"
PAGE: Final = ROOT / "docs" / "model.md"
BEGIN: Final = "<!-- figures: make model ARGS=--write -->"
END: Final = "<!-- end of figures -->"
LIMIT_S: Final = 1800

_STATES: Final = re.compile(r"^\s*([0-9.e+]+) states, stored", re.MULTILINE)
_ERRORS: Final = re.compile(r"errors: (\d+)")


@dataclass(frozen=True, slots=True)
class Variant:
    """One way in which service, network and storage may be."""

    name: str
    flags: tuple[str, ...]
    safe: bool  # what must come out


VARIANTS: Final[tuple[Variant, ...]] = (
    Variant("blind writes, storage checks nothing", ("BLIND",), safe=False),
    Variant("blind writes, fence checked on writes", ("BLIND", "CHECK_WRITES"), safe=True),
    Variant("read-modify-write, storage checks nothing", (), safe=False),
    Variant("read-modify-write, fence checked on writes only", ("CHECK_WRITES",), safe=False),
    Variant("likewise, and must be strictly greater", ("CHECK_WRITES", "STRICTLY"), safe=False),
    Variant("read-modify-write, fence checked on reads only", ("CHECK_READS",), safe=False),
    Variant("read-modify-write, fence checked on reads and writes", ("CHECK_READS", "CHECK_WRITES"), safe=True),
    Variant("likewise, failover forgets the last fence", ("CHECK_READS", "CHECK_WRITES", "FAILOVER"), safe=False),
    Variant("likewise, fences carry the epoch", ("CHECK_READS", "CHECK_WRITES", "FAILOVER", "EPOCH"), safe=True),
    Variant("split brain, fence is a counter", ("CHECK_READS", "CHECK_WRITES", "SPLIT"), safe=False),
    Variant("split brain, fences carry the epoch", ("CHECK_READS", "CHECK_WRITES", "SPLIT", "EPOCH"), safe=True),
)


@dataclass(frozen=True, slots=True)
class Result:
    """What Spin found."""

    name: str
    must_be_safe: bool
    safe: bool
    states: int
    clients: int
    grants: int
    steps: tuple[str, ...]  # the counterexample, shortest first found

    @property
    def as_expected(self) -> bool:
        """Whether it came out as it must."""
        return self.safe == self.must_be_safe


def missing() -> list[str]:
    """The programs that are needed and not there."""
    return [name for name in ("spin", "gcc") if shutil.which(name) is None]


def check(variant: Variant, clients: int, grants: int, directory: Path, optimised: str = "-O2") -> Result:
    """Look at every state that a variant can get into. Where it must fail, the shortest way there is looked for."""
    flags = [f"-D{flag}" for flag in (f"CLIENTS={clients}", f"GRANTS={grants}", *variant.flags)]
    shutil.copy2(MODEL, directory)
    _run(["spin", "-a", *flags, MODEL.name], directory)
    search = ["-DCOLLAPSE"] if variant.safe else ["-DBFS", "-DVECTORSZ=2048"]
    _run(["gcc", optimised, "-w", "-DSAFETY", *search, "-o", "pan", "pan.c"], directory)
    said = _run([str(directory / "pan"), "-m1000000", "-E"], directory)
    errors, states = _ERRORS.search(said), _STATES.search(said)
    if errors is None or states is None or "out of memory" in said or "max search depth too small" in said:
        raise RuntimeError(f"{variant.name}: Spin did not finish:\n{said}")
    safe = errors[1] == "0"
    steps = () if safe else _steps(_run(["spin", "-t", "-T", *flags, MODEL.name], directory))
    return Result(variant.name, variant.safe, safe, round(float(states[1])), clients, grants, steps)


def _steps(replayed: str) -> tuple[str, ...]:
    """What the model says on its way to the error."""
    lines = [line.strip() for line in replayed.splitlines() if not line.startswith("spin: warning")]
    end = next((place for place, line in enumerate(lines) if line.startswith("spin:")), len(lines))
    return tuple(line for line in lines[:end] if line)


def _run(command: Sequence[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def figures(results: Iterable[Result]) -> str:
    """The table for the page."""
    rows = ["| variant | clients × grants | result | states |", "|---|---|---|---|"]
    for each in results:
        found = "no error" if each.safe else f"**an update is lost** after {len(each.steps)} steps"
        rows.append(f"| {each.name} | {each.clients} × {each.grants} | {found} | {each.states:,} |")
    return "\n".join(rows)


def write(results: Iterable[Result]) -> None:
    """Put the table into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{figures(results)}\n\n{END}{after}", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Put the model of leases and fences through Spin.")
    parser.add_argument("--small", action="store_true", help="two clients and three grants")
    parser.add_argument("--write", action="store_true", help="write the figures into docs/model.md")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def main() -> int:
    """Check every variant and say what came out."""
    arguments = _arguments()
    if lacking := missing():
        print(f"not found: {', '.join(lacking)}; on Debian: apt-get install spin gcc", file=sys.stderr)
        return 2
    results = []
    for variant in VARIANTS:
        clients, grants = (2, 3) if arguments.small else (3, 5)
        with tempfile.TemporaryDirectory() as directory:
            result = check(variant, clients, grants, Path(directory))
        results.append(result)
        if not arguments.json:
            verdict = "no error" if result.safe else f"an update is lost after {len(result.steps)} steps"
            mark = "as it must be" if result.as_expected else "NOT AS IT MUST BE"
            print(f"{result.name}: {verdict}, {result.states:,} states; {mark}", flush=True)
            for step in result.steps:
                print(f"    {step}")
    if arguments.json:
        print(json.dumps([asdict(each) for each in results], indent=2))
    if arguments.write:
        write(results)
    return 0 if all(each.as_expected for each in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
