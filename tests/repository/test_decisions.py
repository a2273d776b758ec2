"""Decision records: numbered without gaps, dated, with a known status, and listed with just that in their index."""

from __future__ import annotations

import datetime as dt
import re

import pytest

from support.source_tree import ROOT

FOLDER = ROOT / "docs" / "decisions"
INDEX = FOLDER / "README.md"
RECORDS = sorted(path for path in FOLDER.glob("*.md") if path != INDEX)
RECORD = re.compile(
    r"# (?P<number>\d+)\. (?P<title>[^\n]+)\n\n"
    r"- Date: (?P<date>\d{4}-\d\d-\d\d)\n- Status: (?P<status>[^\n]+)\n\n"
    r"## Context\n\n(?P<context>.+?)\n\n## Decision\n\n(?P<decision>.+?)\n\n## Consequences\n\n(?P<consequences>.+)\n",
    re.DOTALL,
)
ROW = re.compile(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+?) \| (\S+) \| (.+) \|$", re.MULTILINE)
STATUS = re.compile(r"accepted|(?:superseded|amended) by \[(?P<number>\d+)\]\((?P<file>\d{4}-[a-z0-9-]+\.md)\)")


def parts(text: str) -> dict[str, str]:
    found = RECORD.fullmatch(text)
    assert found is not None, "title, date, status, context, decision and consequences, in this order"
    return found.groupdict()


def read(name: str) -> dict[str, str]:
    return parts((FOLDER / name).read_text(encoding="utf-8"))


def test_records_are_numbered_without_gaps_in_the_order_of_their_dates() -> None:
    found = [(path.name, read(path.name)) for path in RECORDS]
    assert len(found) > 50
    assert [int(record["number"]) for _, record in found] == list(range(1, len(found) + 1))
    assert all(re.fullmatch(rf"{int(record['number']):04d}-[a-z0-9-]+\.md", name) for name, record in found)
    dates = [dt.date.fromisoformat(record["date"]) for _, record in found]
    assert dates == sorted(dates)


@pytest.mark.parametrize("name", [path.name for path in RECORDS])
def test_a_record_has_a_status_and_every_section_says_something(name: str) -> None:
    record = read(name)
    status = STATUS.fullmatch(record["status"])
    assert status is not None, record["status"]
    if status["file"] is not None:
        assert read(status["file"])["number"] == status["number"]
    assert all(len(record[section]) > 20 for section in ("context", "decision", "consequences"))


def test_the_index_lists_every_record() -> None:
    rows = ROW.findall(INDEX.read_text(encoding="utf-8"))
    records = [(path.name, read(path.name)) for path in RECORDS]
    assert rows == [
        (f"{int(each['number']):04d}", name, each["title"], each["date"], each["status"]) for name, each in records
    ]


WHOLE = (
    "# 1. T\n\n- Date: 2026-11-15\n- Status: accepted\n\n## Context\n\nC\n\n## Decision\n\nD\n\n## Consequences\n\nK\n"
)


@pytest.mark.parametrize("missing", ["1. ", "- Date: 2026-11-15\n", "## Context\n\nC\n\n", "## Decision\n\n", "K\n"])
def test_a_record_that_is_not_whole_is_found(missing: str) -> None:
    assert parts(WHOLE)["title"] == "T"
    with pytest.raises(AssertionError, match="in this order"):
        parts(WHOLE.replace(missing, ""))
