"""A bill of materials of what `make` installs: CycloneDX 1.6 in JSON, made from a lock file and nothing else.

    python tools/sbom.py                      what `make run` installs (requirements/run.txt)
    python tools/sbom.py dev                  what the tests need as well
    python tools/sbom.py --out build/holdfast.cdx.json

The same lock file gives the same bytes, on any machine and at any time: there is no date in it, and its serial number
is made from its contents. Nothing is fetched and nothing has to be installed. A package that is needed only on some
machines is in it with the condition; one with several versions is in it with each.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pages import ROOT

_PIN: Final = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.!+_-]+)(?:\s*;\s*(?P<marker>[^\\]+?))?\s*"
)
_HASH: Final = re.compile(r"--hash=sha256:(?P<digest>[0-9a-f]{64})\s*")


class BadLock(ValueError):
    """A line of a lock file that is no pin."""


class Pin(NamedTuple):
    """One package of a lock file."""

    name: str
    version: str
    marker: str = ""
    hashes: tuple[str, ...] = ()  # sha256 of each file that may be installed

    @property
    def purl(self) -> str:
        """How the world names this package."""
        return f"pkg:pypi/{re.sub(r'[-_.]+', '-', self.name).lower()}@{self.version.replace('+', '%2B')}"


def pins(text: str) -> list[Pin]:
    """The packages of a lock file, in its order, or `BadLock`."""
    found: list[Pin] = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        head, *rest = re.split(r"\s(?=--)", line)
        pin = _PIN.fullmatch(head.strip())
        hashes = [_HASH.fullmatch(each.strip()) for each in rest]
        if pin is None or not all(hashes):
            raise BadLock(f"{line.strip()[:120]!r} is no pinned package")
        digests = tuple(sorted(each["digest"] for each in hashes if each is not None))
        found.append(Pin(pin["name"], pin["version"], (pin["marker"] or "").strip(), digests))
    return found


def bill(found: Sequence[Pin], version: str) -> dict[str, Any]:
    """The document."""
    own = {
        "type": "application",
        "bom-ref": f"pkg:pypi/holdfast@{version}",
        "name": "holdfast",
        "version": version,
        "purl": f"pkg:pypi/holdfast@{version}",
    }
    ordered = sorted(found)
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": [_component(each) for each in ordered],
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [each.purl for each in ordered]}],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True))
    return {**document, "serialNumber": f"urn:uuid:{serial}"}


def _component(pin: Pin) -> dict[str, Any]:
    properties = [{"name": "holdfast:condition", "value": pin.marker}] if pin.marker else []
    # One file is one artefact; a package is many, one for each kind of machine. So they are named, not merged.
    properties += [{"name": "holdfast:file:sha256", "value": each} for each in pin.hashes]
    made: dict[str, Any] = {"type": "library", "bom-ref": pin.purl, "name": pin.name, "version": pin.version}
    return {**made, "purl": pin.purl, **({"properties": properties} if properties else {})}


def rendered(text: str, version: str) -> str:
    """The document for the text of a lock file."""
    return json.dumps(bill(pins(text), version), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def version_of() -> str:
    """The version of this package, as it is written down."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if "version" in project:
        return str(project["version"])
    found = re.search(r'__version__[^=]*=\s*"([^"]+)"', (ROOT / "src/holdfast/__init__.py").read_text(encoding="utf-8"))
    if found is None:
        raise BadLock("the package has no version")
    return found[1]


def main(words: Sequence[str] | None = None) -> int:
    """Print it, or write it."""
    locks = sorted(path.stem for path in (ROOT / "requirements").glob("*.txt"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("lock", nargs="?", choices=locks, default="run")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write it there instead of printing it")
    asked = parser.parse_args(words)
    text = rendered((ROOT / "requirements" / f"{asked.lock}.txt").read_text(encoding="utf-8"), version_of())
    if asked.out is None:
        sys.stdout.write(text)
        return 0
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(text, encoding="utf-8")
    print(f"{asked.out}: {text.count('bom-ref') - 1} packages")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
