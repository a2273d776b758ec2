"""A store in a package of its own: installed for real, found by its URL scheme, and measured with the public kit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.source_tree import PACKAGE, ROOT

EXAMPLE = ROOT / "tests" / "support" / "example_store"


def install(source: Path, target: Path) -> None:
    """Build a wheel without a network, and install it into a folder of its own."""
    target.mkdir(parents=True)
    copy = target.parent / f"{target.name}-source"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    words = ("install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(target))
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, str(copy)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH that holds the installed example."""
    target = tmp_path_factory.mktemp("site") / "packages"
    install(EXAMPLE, target)
    return target


def run_with(folders: list[Path], code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that finds packages in some folders."""
    path = ":".join(map(str, [*folders, PACKAGE.parent]))
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def result(done: subprocess.CompletedProcess[str]) -> Any:
    """The JSON that a program printed."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_installed_package_is_found_by_its_scheme(installed: Path, tmp_path: Path) -> None:
    code = """
import asyncio, json, pickle, holdfast
with holdfast.connect("JSONFILE:///leases.json") as locks, locks.lock("invoice:42", ttl=30) as lease:
    seen = [locks.capabilities.engine, lease.fence > 0, locks.lock("invoice:42").try_acquire() is None]
    copy = pickle.loads(pickle.dumps(locks.lock("invoice:42")))
    seen.append(copy.locked())

async def main():
    async with holdfast.aio.connect("jsonfile:///leases.json") as locks:
        async with locks.lock("invoice:42", ttl=30) as again:
            return again.fence > lease.fence

print(json.dumps([*seen, asyncio.run(main())]))
"""
    assert result(run_with([installed], code, tmp_path)) == ["jsonfile", True, True, True, True]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "asyncio"])
def test_the_kit_proves_every_claim_of_an_installed_store(installed: Path, tmp_path: Path, asynchronous: bool) -> None:
    code = f"""
import json
from holdfast.stores.registry import open_engine
from holdfast.testing.conformance import check_store, checks_for
URL = "jsonfile:///leases.json"
open_store = (lambda: open_engine(URL).asynchronous()) if {asynchronous} else (lambda: open_engine(URL).blocking)
report = check_store(open_store, asynchronous={asynchronous}, elsewhere=URL)
print(json.dumps([len(report.proven) == len(checks_for(report.capabilities)), report.unproven]))
"""
    assert result(run_with([installed], code, tmp_path)) == [True, []]


def test_a_url_nobody_serves_lists_installed_schemes(installed: Path, tmp_path: Path) -> None:
    done = run_with([installed], "import holdfast; holdfast.connect('jsonfle:///x')", tmp_path)
    assert "did you mean jsonfile://?" in done.stderr


def test_two_packages_for_one_scheme_are_refused_by_name(installed: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(EXAMPLE, other, ignore=shutil.ignore_patterns("__pycache__"))
    described = (other / "pyproject.toml").read_text()
    (other / "pyproject.toml").write_text(described.replace("jsonfile", "rival").replace("rival =", "jsonfile ="))
    (other / "holdfast_jsonfile").rename(other / "holdfast_rival")
    install(other, tmp_path / "rival")
    done = run_with([installed, tmp_path / "rival"], "import holdfast; holdfast.connect('jsonfile:///x')", tmp_path)
    assert "jsonfile:// is provided by holdfast-jsonfile (" in done.stderr
    assert "and holdfast-rival (" in done.stderr


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("import no_such_driver", "which cannot be imported (ModuleNotFoundError: No module named 'no_such_driver')"),
        ("open_engine = 7", "which is no function"),
        ("def open_engine(url): return object()", "object is not an engine: it lacks capabilities"),
    ],
)
def test_a_broken_package_is_named_with_the_reason(tmp_path: Path, module: str, says: str) -> None:
    broken = tmp_path / "site"
    folder = broken / "holdfast_broken-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast-broken\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[holdfast.stores]\nbroken = holdfast_broken:open_engine\n")
    (broken / "holdfast_broken.py").write_text(module + "\n")
    done = run_with([broken], "import holdfast; holdfast.connect('broken://x')", tmp_path)
    assert "Misconfigured: broken:// is provided by holdfast-broken (holdfast_broken:open_engine), " in done.stderr
    assert says in done.stderr


def test_a_package_cannot_replace_a_store_of_holdfast(tmp_path: Path) -> None:
    folder = tmp_path / "site" / "sly-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: sly\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[holdfast.stores]\nmemory = sly:open_engine\n")
    code = "import json, holdfast; print(json.dumps(holdfast.connect('memory://').capabilities.engine))"
    assert result(run_with([tmp_path / "site"], code, tmp_path)) == "memory"
