"""The bill of materials says what is installed, all of it, and is the same bytes wherever it is made."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest

import sbom
from support.source_tree import ROOT

pytestmark = pytest.mark.threat("X18")

LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
HASHED = """\
# Pinned by hand.
click==8.5.1 \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:{a}
Zope.Interface_x==1.0+local.1
""".format(a="a" * 64, b="b" * 64)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_pin_is_in_it_once_with_its_condition(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    made = json.loads(sbom.rendered(text, "1.2.3"))
    assert (made["bomFormat"], made["specVersion"], made["version"]) == ("CycloneDX", "1.6", 1)
    pinned = [line for line in text.splitlines() if "==" in line.partition(";")[0] and not line.startswith("#")]
    components = made["components"]
    assert len(components) == len(pinned) > 10
    references = [each["bom-ref"] for each in components]
    assert len(set(references)) == len(references)
    assert made["dependencies"][0]["dependsOn"] == references
    assert all(re.fullmatch(r"pkg:pypi/[a-z0-9-]+@[a-zA-Z0-9.%-]+", each) for each in references)
    properties = [one["name"] for each in components for one in each.get("properties", [])]
    assert properties.count("holdfast:condition") == sum(" ; " in line for line in pinned)
    assert made["metadata"]["component"]["purl"] == "pkg:pypi/holdfast@1.2.3"


def test_the_same_lock_gives_the_same_bytes_and_another_another_number() -> None:
    text = LOCKS[0].read_text(encoding="utf-8")
    made = sbom.rendered(text, "1.2.3")
    pins = text.replace("\\\n", "").splitlines()
    assert made == sbom.rendered(text, "1.2.3") == sbom.rendered("\n".join(reversed(pins)), "1.2.3")
    serial = json.loads(made)["serialNumber"]
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", serial)
    assert serial != json.loads(sbom.rendered(text, "1.2.4"))["serialNumber"]
    assert not re.search(r"20\d\d-\d\d-\d\dT", made), "a time"


def test_hashes_and_odd_names_are_read() -> None:
    click, colorama, zope = sbom.pins(HASHED)
    assert click == sbom.Pin("click", "8.5.1", "", ("a" * 64, "b" * 64))
    assert colorama == sbom.Pin("colorama", "0.4.6", "sys_platform == 'win32'", ("a" * 64,))
    assert zope.purl == "pkg:pypi/zope-interface-x@1.0%2Blocal.1"
    found = json.loads(sbom.rendered(HASHED, "1"))["components"]
    files = {
        each["name"]: [one["value"] for one in each.get("properties", []) if "file" in one["name"]] for each in found
    }
    assert files == {"click": ["a" * 64, "b" * 64], "colorama": ["a" * 64], "Zope.Interface_x": []}


@pytest.mark.parametrize(
    "line",
    [
        *("click", "click>=8", "click @ https://example.org/click.whl", "-r other.txt", "-e .", "click==8 extra"),
        *("click==8.5.1 --hash=sha256:zz", "click==8.5.1 --hash=md5:" + "a" * 32, "--index-url x", "git+https://x/y"),
    ],
)
def test_what_is_no_pin_is_refused(line: str) -> None:
    with pytest.raises(sbom.BadLock):
        sbom.pins(line + "\n")


def test_it_is_printed_or_written_with_the_version_of_this_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sbom.main([]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["metadata"]["component"]["version"] == version("holdfast")
    assert sbom.main(["run", "--out", str(tmp_path / "made" / "holdfast.cdx.json")]) == 0
    assert (tmp_path / "made" / "holdfast.cdx.json").read_text(encoding="utf-8") == printed
