"""A policy file is edited as a careful person would: one line changes, atomically, or nothing does."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.lease.error_policy import OnError
from holdfast.errors import BadInput
from holdfast.runtime.policy_switch import edit_policy_file, edited, read_policy_file

FILE = """\
# what we agreed on in May
title = "ours"

[risk]
low = "fail_open"   # crawls
  "money.eu" = 'fail_closed'

[other]
low = "not ours"
"""


@pytest.mark.parametrize(
    ("risk", "mode", "line", "before"),
    [
        ("low", OnError.WAIT, 'low = "wait"   # crawls', 'low = "fail_open"   # crawls'),
        ("money.eu", OnError.WAIT, '  "money.eu" = "wait"', "  \"money.eu\" = 'fail_closed'"),
    ],
)
def test_one_line_changes_and_comments_stay(risk: str, mode: OnError, line: str, before: str) -> None:
    assert edited(FILE, risk, mode) == FILE.replace(before, line)


def test_a_new_class_is_added_to_its_table() -> None:
    assert edited(FILE, "high", OnError.FAIL_CLOSED) == FILE.replace(
        "'fail_closed'\n", "'fail_closed'\nhigh = \"fail_closed\"\n"
    )
    assert edited("# none\n", "a/b", OnError.WAIT) == '# none\n\n[risk]\n"a/b" = "wait"\n'
    assert edited("[risk]\r\nlow = 'wait'\r\n", "low", OnError.FAIL_OPEN) == '[risk]\r\nlow = "fail_open"\r\n'


@pytest.mark.parametrize("text", ['risk = {low = "wait"}\n', 'risk.low = "wait"\n', "[risk]\nlow = '''wait'''\n"])
def test_what_cannot_be_edited_safely_is_left_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(BadInput, match="by hand"):
        edit_policy_file(file, "low", "fail_open")
    assert file.read_text() == text
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("text", ["[risk\n", "[risk]\nlow = 7\n", "risk = 3\n", "\xff"])
def test_a_file_that_is_wrong_already_is_left_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInput):
        edit_policy_file(file, "low", "fail_open")
    assert file.read_bytes() == text.encode("latin-1")


def test_rights_and_links_stay_and_what_is_missing_is_made(tmp_path: Path) -> None:
    real, link = tmp_path / "real.toml", tmp_path / "link.toml"
    assert edit_policy_file(real, "low", "fail_open") == (OnError.FAIL_CLOSED, OnError.FAIL_OPEN)
    real.chmod(0o600)
    link.symlink_to(real)
    assert edit_policy_file(link, "low", "wait") == (OnError.FAIL_OPEN, OnError.WAIT)
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    assert read_policy_file(link).classes == {"low": OnError.WAIT}
    with pytest.raises(BadInput, match="cannot be written"):
        edit_policy_file(tmp_path / "nowhere" / "p.toml", "low", "wait")


@settings(max_examples=40)
@given(
    st.dictionaries(st.from_regex(r"[A-Za-z0-9._:/-]{1,12}", fullmatch=True), st.sampled_from(OnError), max_size=5),
    st.from_regex(r"[A-Za-z0-9._:/-]{1,12}", fullmatch=True),
    st.sampled_from(OnError),
)
@pytest.mark.requires("R104")
def test_editing_does_what_it_says_for_every_class(classes: dict[str, OnError], risk: str, mode: OnError) -> None:
    text = ""
    for name, each in classes.items():
        text = edited(text, name, each)
    assert edited(edited(text, risk, mode), risk, mode) == edited(text, risk, mode)
