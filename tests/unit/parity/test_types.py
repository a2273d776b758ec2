"""What a type checker knows about the surface: a lock without a risk class always has a fence."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

RIGHT = """
import holdfast
from holdfast import aio

locks = holdfast.connect("memory://")
reveal_type(locks.lock("x").acquire())  # Lease
reveal_type(locks.lock("x").try_acquire())  # Lease | None
reveal_type(locks.lock("x", risk="low").acquire())  # Lease | DegradedLease
reveal_type(locks.lock("x").acquire().fence)  # int
reveal_type(locks.lock("x", risk="low").acquire().fence)  # int | None
reveal_type(locks.lock("x").acquire().guaranteed)  # Literal[True]
reveal_type(locks.hold("x", ttl=1))  # Lease | None
with locks.lock("x", ttl=5) as lease:
    reveal_type(lease)  # Lease
with locks.lock("x", risk="low", ttl=5) as either:
    reveal_type(either)  # Lease | DegradedLease
with locks.leader("x") as leading:
    reveal_type(leading)  # Lease


async def colour() -> None:
    async with aio.connect("memory://") as locks:
        reveal_type(await locks.lock("x").acquire())  # Lease
        reveal_type(await locks.lock("x", risk="low").acquire())  # Lease | DegradedLease
        reveal_type((await locks.lock("x").acquire()).fence)  # int
        reveal_type((await locks.lock("x", risk="low").acquire()).fence)  # int | None
        async with locks.lock("x") as lease:
            reveal_type(lease)  # Lease


def narrowed(either: holdfast.Lease | holdfast.DegradedLease) -> int | None:
    if isinstance(either, holdfast.Lease):
        reveal_type(either.fence)  # int
    return either.fence


def write(value: str, lease: holdfast.Lease) -> None: ...
"""

WRONG = """
import holdfast

locks = holdfast.connect("memory://")
locks.lock("x", tll=5)  # error
locks.lock("x", ttl="5")  # error
locks.lock("x", on_loss="explode")  # error
locks.lock(b"x")  # error


def write(value: str, lease: holdfast.Lease) -> None: ...


write("x", locks.lock("x", risk="low").acquire())  # error
write("x", locks.lock("x").try_acquire())  # error
write("x")  # error
"""


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    """What the checker says about both files, by file and line. One run for all."""
    folder = tmp_path_factory.mktemp("types")
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(WRONG)
    options = ["--strict", "--no-error-summary", "--config-file=", "--cache-dir", "cache"]
    answer = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "right.py", "wrong.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": ""},
        timeout=110,
    )
    said: dict[str, dict[int, str]] = {"right.py": {}, "wrong.py": {}}
    for file, line, text in re.findall(r"^(\w+\.py):(\d+): (.+)$", answer.stdout, re.MULTILINE):
        if "See https" not in text:
            said[file][int(line)] = said[file].get(int(line), "") + text
    assert said["right.py"], answer.stdout + answer.stderr
    return said


def test_the_checker_knows_what_each_call_returns(findings: dict[str, dict[int, str]]) -> None:
    wrong = []
    for number, line in enumerate(RIGHT.splitlines(), 1):
        said = findings["right.py"].get(number, "")
        if "reveal_type" not in line:
            if said:
                wrong.append(f"{line}: {said}")
            continue
        expected = line.rpartition("# ")[2]
        shown = re.sub(r"holdfast\.(?:\w+\.)+", "", said.partition('"')[2].rpartition('"')[0])
        shown = re.sub(r"Union\[(.+)\]", lambda match: match[1].replace(", ", " | "), shown)
        shown = shown.replace("builtins.", "")
        if shown != expected:
            wrong.append(f"{line}: {shown}")
    assert not wrong, "\n".join(wrong)


def test_the_checker_refuses_what_would_go_wrong(findings: dict[str, dict[int, str]]) -> None:
    expected = {number for number, line in enumerate(WRONG.splitlines(), 1) if "# error" in line}
    refused = {number for number, said in findings["wrong.py"].items() if "error" in said}
    assert refused == expected
