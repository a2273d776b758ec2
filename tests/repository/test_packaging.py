"""What a user installs: the wheel holds all of the package and nothing else, and asks for nothing it does not say."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from support.source_tree import PACKAGE, ROOT, shown

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as a release is, with the pinned build backend and without a network."""
    target = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (built,) = target.glob("*.whl")
    return built


@pytest.mark.threat("X18")
def test_another_build_elsewhere_at_another_time_is_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TZ": "Asia/Kathmandu", "LC_ALL": "C", "PYTHONHASHSEED": "7", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["sh", "-c", f"umask 077; exec {sys.executable} -m hatchling build -t wheel -d {tmp_path}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (again,) = tmp_path.glob("*.whl")
    assert again.read_bytes() == wheel.read_bytes()


def test_the_wheel_holds_all_of_the_package_and_nothing_else(wheel: Path) -> None:
    ours = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.glob("**/*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == ours


def test_a_simulated_world_is_replayed_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    for name, words in (("simulate", ["--seed", "3"]), ("simulate_plane", ["--help"])):
        done = subprocess.run(
            [sys.executable, "-m", f"holdfast.testing.{name}", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr


def test_the_testing_package_has_few_modules_beside_the_simulator() -> None:
    """The simulator is a package of its own; what users import is found at first sight."""
    for folder in (PACKAGE / "testing", *(PACKAGE / "testing").glob("**/")):
        assert len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) <= 20, folder


def test_the_wheel_brings_its_types_and_its_scripts(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert "holdfast/py.typed" in packed
    scripts = {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.glob("**/*.lua")}
    statements = {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.glob("**/*.sql")}
    assert scripts | statements <= packed


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata_name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(metadata_name))
        (entry_points,) = (name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt"))
        commands = archive.read(entry_points).decode()
        licenses = [name for name in archive.namelist() if name.endswith("/LICENSE")]
    assert metadata["Name"] == "holdfast"
    assert metadata["Version"] == PROJECT["version"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert "holdfast = holdfast.cli:main" in commands
    assert "[pytest11]\nholdfast = holdfast.testing.pytest_plugin" in commands
    assert len(licenses) == 1


@pytest.mark.threat("X18")
def test_the_core_depends_on_nothing(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        required = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    assert [each for each in required if "extra ==" not in each] == []


def test_the_version_is_the_same_everywhere() -> None:
    import holdfast

    assert holdfast.__version__ == PROJECT["version"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{PROJECT['version']}]" in changes


def test_the_extra_named_all_brings_every_other_extra() -> None:
    extras = PROJECT["optional-dependencies"]
    assert extras["all"] == [f"holdfast[{','.join(name for name in extras if name != 'all')}]"]


@pytest.mark.threat("X18")
@pytest.mark.parametrize("path", sorted((ROOT / "requirements").glob("*.txt")), ids=shown)
def test_the_lock_pins_every_package_and_names_no_address(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    pins = [pin for pin in re.sub(r"\\\n\s*", "", text).splitlines() if not pin.startswith("#")]
    assert pins
    assert [pin for pin in pins if "==" not in pin.partition(";")[0]] == []
    assert [pin for pin in pins if not re.fullmatch(r"[^-][^\\]*?( ?--hash=sha256:[0-9a-f]{64})+", pin)] == []
    assert "://" not in text
    assert " @ " not in text


def test_one_environment_can_hold_all_locks_but_the_lowest() -> None:
    """A package that stands in several lock files stands there in the same versions."""
    seen: dict[str, dict[str, set[str]]] = {}
    for path in sorted({*(ROOT / "requirements").glob("*.txt")} - {ROOT / "requirements" / "lowest.txt"}):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line[:1].isalnum():
                name = line.partition("==")[0]
                seen.setdefault(name, {}).setdefault(path.name, set()).add(line.partition(" ")[0])
    assert {name: pins for name, pins in seen.items() if len(set(map(frozenset, pins.values()))) > 1} == {}


def test_the_lock_has_everything_that_pyproject_asks_for() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    wanted = [each for group in ("build", "test", "lint") for each in groups[group] if isinstance(each, str)]
    wanted += [each for extra in PROJECT["optional-dependencies"].values() for each in extra]
    wanted = [each for each in wanted if not each.startswith("holdfast[")]
    pinned = {
        line.partition("==")[0]
        for line in (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8").splitlines()
        if line[:1].isalnum()
    }
    assert {each.partition(">=")[0].partition("[")[0].lower() for each in wanted} <= pinned, "run `make lock`"
