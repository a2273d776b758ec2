"""Numbers in a settings file are changed and nothing else is: comments, order and all other values stay."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.ops.setting_edits import difference, edited, write

TEXT = """# a plane
database = "sqlite:///plane.db"  # the file

[scheduler]   # decides
# how long a silent one keeps a job
job_ttl = 60  # as always
concurrency = 8

[worker]
app = "works:app"
"""


def test_a_number_is_exchanged_and_every_other_byte_stays() -> None:
    assert edited(TEXT, {"scheduler.job_ttl": 29.5}) == TEXT.replace("job_ttl = 60 ", "job_ttl = 29.5 ")


def test_a_key_goes_into_its_section_and_a_section_to_the_end() -> None:
    found = edited(TEXT, {"worker.lease_ttl": 24.0, "engine.run_ttl": 9.125, "grace": 5.0})
    assert '\napp = "works:app"\nlease_ttl = 24\n\n[engine]\nrun_ttl = 9.125\n' in found
    assert found.startswith('# a plane\ndatabase = "sqlite:///plane.db"  # the file\ngrace = 5\n\n[scheduler]')
    assert tomllib.loads(found)["worker"] == {"app": "works:app", "lease_ttl": 24}


@pytest.mark.parametrize(
    "text", ["", "\n", "[worker]", "a = 1", "[worker]\r\napp = 'x'\r\n", "[x]\ny = 1\n[worker]\n\n\n[z]\nk = 2"]
)
def test_files_of_any_shape_are_extended(text: str) -> None:
    found = edited(text, {"worker.lease_ttl": 12.5})
    before = tomllib.loads(text)
    assert tomllib.loads(found) == before | {"worker": before.get("worker", {}) | {"lease_ttl": 12.5}}
    assert found.startswith(text.rstrip("\r\n").partition("[z]")[0].rstrip())


@pytest.mark.parametrize(
    "text",
    [
        "worker = {lease_ttl = 30}\n",
        "worker.lease_ttl = 30\n",
        'a = """\n[worker]\n"""\n',
        '[worker]\nnote = """\nlease_ttl = 30\n"""\n',
        "[worker]\nlease_ttl = [\n30]\n",
        "[[worker]]\nlease_ttl = 1\n",
        "not toml",
    ],
)
def test_what_cannot_be_changed_safely_is_refused_or_right(text: str) -> None:
    try:
        found = edited(text, {"worker.lease_ttl": 12.5})
    except BadInput:
        found = "[worker]\nlease_ttl = 12.5"  # refused, which is as good
    assert tomllib.loads(found)["worker"]["lease_ttl"] == 12.5


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "s.c", "s.d", "t.e"]), st.sampled_from([0.0, 0.125, 7.0, 1e6]), min_size=1
    ),
    st.lists(st.sampled_from(["a = 1", "# b = 2", "[s]", "c = 3 # d = 4", "", "[t]", "e = 'x = 1'", "[u]", "f = 5"])),
)
def test_whatever_the_file_the_answer_says_what_it_should_or_there_is_none(
    changes: dict[str, float], lines: list[str]
) -> None:
    text = "\n".join(lines)
    try:
        found = edited(text, changes)
    except BadInput:
        return
    after = tomllib.loads(found)
    for name, value in changes.items():
        section, _, key = name.rpartition(".")
        assert (after[section] if section else after)[key] == value
    kept = [line for line in lines if line.startswith("#")]
    assert [line for line in found.splitlines() if line.startswith("#")] == kept


def test_the_old_file_is_kept_and_the_new_one_has_its_rights(tmp_path: Path) -> None:
    real, link = tmp_path / "real.toml", tmp_path / "holdfast.toml"
    real.write_text(TEXT)
    real.chmod(0o600)
    link.symlink_to(real)
    kept = write(link, TEXT, "grace = 1\n")
    assert link.is_symlink()
    assert (real.read_text(), real.stat().st_mode & 0o777) == ("grace = 1\n", 0o600)
    assert kept == tmp_path / "real.toml.before"
    assert (kept.read_text(), kept.stat().st_mode & 0o777) == (TEXT, 0o600)
    assert write(tmp_path / "new.toml", "", "grace = 2\n") is None
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "holdfast.toml",
        "new.toml",
        "real.toml",
        "real.toml.before",
    ]


def test_a_file_that_was_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text("grace = 9\n")
    with pytest.raises(BadInput, match="was changed by somebody meanwhile"):
        write(path, TEXT, "grace = 1\n")
    assert path.read_text() == "grace = 9\n"


def test_a_disk_that_does_not_take_it_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text(TEXT)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(BadInput, match="No space left"):
        write(path, TEXT, "grace = 1\n")
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == TEXT


def test_a_difference_is_shown_as_diff_shows_it() -> None:
    shown = difference("a = 1\nb = 2", "a = 1\nb = 3\n", "holdfast.toml")
    assert shown.splitlines()[:2] == ["--- a/holdfast.toml", "+++ b/holdfast.toml"]
    assert "-b = 2\n+b = 3\n" in shown
