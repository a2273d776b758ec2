"""The page for the engineer on call lists every incident that can be played, with its finding."""

from __future__ import annotations

import re

from holdfast.drills.incidents.incident_list import INCIDENTS
from support.source_tree import ROOT


def test_the_page_lists_every_incident_with_its_finding() -> None:
    page = (ROOT / "docs" / "incidents.md").read_text(encoding="utf-8").partition("## The incidents")[2]
    listed = re.findall(r"^\| `([a-z-]+)` \| `([a-z ]+)` \| \S", page, re.MULTILINE)
    assert listed == [(each.name, each.finding) for each in INCIDENTS]
