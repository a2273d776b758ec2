"""Every threat has a test that shows it defended, or a sentence that says what is missing; and the page says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import marks
import threats


@pytest.fixture(scope="module")
def proofs() -> dict[str, list[str]]:
    return threats.collect()


def test_every_threat_is_said_in_words_and_has_a_test(proofs: dict[str, list[str]]) -> None:
    known = threats.threats()
    assert list(known) == [f"X{number}" for number in range(1, len(known) + 1)]
    for each in known.values():
        assert each.threat
        assert each.defence
        assert not each.missing or re.fullmatch(r".{20,}\.", each.missing), each.id
        assert proofs[each.id], f"{each.id} ({each.threat}) has no test"


def test_the_table_of_the_page_is_up_to_date(proofs: dict[str, list[str]]) -> None:
    assert threats.PAGE.read_text(encoding="utf-8") == threats.render(proofs), "run `make docs`"


@pytest.mark.parametrize("argument", ["'X0'", "'R4'", "NAME"])
def test_a_mark_that_names_no_threat_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "threats.toml").write_text('[X1]\nthreat = "a"\ndefence = "b"\n')
    text = f"import pytest\n@pytest.mark.threat({argument})\ndef test_a(): ...\n"
    (tmp_path / "tests" / "test_it.py").write_text(text)
    monkeypatch.setattr(threats, "ROOT", tmp_path)
    with pytest.raises(marks.BadMarker, match="test_a"):
        threats.collect()
