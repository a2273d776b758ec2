"""Proving what a type checker refuses: a program whose wrong lines say so, and mypy's opinion of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def disagreements(program: str, folder: Path) -> tuple[list[str], list[str]]:
    """Where mypy in strict mode and the program disagree: complaints about other lines, and wrong lines that it missed.

    A line that the checker must refuse ends with `# error`.
    """
    (folder / "program.py").write_text(program)
    options = ["--strict", "--no-error-summary", "--config-file=", "--cache-dir", "cache"]
    answer = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "program.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": ""},
        timeout=110,
    )
    assert answer.stderr == ""
    lines = program.splitlines()
    said = {int(line.split(":")[1]): line for line in answer.stdout.splitlines() if ": error: " in line}
    wanted = {number for number, line in enumerate(lines, 1) if line.endswith("# error")}
    unexpected = [text for number, text in said.items() if number not in wanted]
    return unexpected, [lines[number - 1] for number in sorted(wanted - set(said))]
