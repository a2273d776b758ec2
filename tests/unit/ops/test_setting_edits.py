"""Numbers in a settings file are changed and nothing else is: comments, order and all other values stay."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.plane.settings.edit import difference, edited, write

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
    ("text", "after"),
    [
        ("worker = {lease_ttl = 30}  # w\n", "worker = {lease_ttl = 12.5}  # w\n"),
        ("worker = { count = 3 }\n", "worker = { count = 3, lease_ttl = 12.5 }\n"),
        ("worker = { count = { a = 1 } }\n", "worker = { count = { a = 1 }, lease_ttl = 12.5 }\n"),
        ("worker = {}\na = 1\n", "worker = { lease_ttl = 12.5 }\na = 1\n"),
        ("worker.lease_ttl = 30 # w\n", "worker.lease_ttl = 12.5 # w\n"),
        (' "worker" . lease_ttl=3e1\n', ' "worker" . lease_ttl=12.5\n'),
        ("worker.count = 3\na = 1\n", "worker.count = 3\nworker.lease_ttl = 12.5\na = 1\n"),
        ("worker.count = [\n  3, # ]\n]", "worker.count = [\n  3, # ]\n]\nworker.lease_ttl = 12.5\n"),
        ('a = """\n[worker]\n"""\n', 'a = """\n[worker]\n"""\n\n[worker]\nlease_ttl = 12.5\n'),
        (
            '[ "worker" ]\nnote = """\nlease_ttl = 30\n"""\n# z\n[z]\n',
            '[ "worker" ]\nnote = """\nlease_ttl = 30\n"""\nlease_ttl = 12.5\n# z\n[z]\n',
        ),
        ("[worker]\nlease_ttl = [\n30]\n", "[worker]\nlease_ttl = 12.5\n"),
        ("[worker]\n  count = 3\n", "[worker]\n  count = 3\n  lease_ttl = 12.5\n"),
        ("[worker.sub]\na = 1\n", "[worker.sub]\na = 1\n\n[worker]\nlease_ttl = 12.5\n"),
        ("x = nan\n[worker]\nd = 1979-05-27 07:32:00\n", None),
    ],
)
def test_every_form_of_a_table_is_edited_as_it_was_written(text: str, after: str | None) -> None:
    found = edited(text, {"worker.lease_ttl": 12.5})
    assert found == (after or text + "lease_ttl = 12.5\n")
    assert edited(found, {"worker.lease_ttl": 12.5}) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = 1\n [[worker]] # w\nlease_ttl = 1\n", "line 2, [[worker]] # w: is not a table of settings"),
        ("worker = 3\n", "line 1, worker = 3: is not a table of settings"),
        ("not toml", "write the file as TOML first"),
    ],
)
def test_what_cannot_be_changed_is_refused_with_its_line_and_what_to_write(text: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        edited(text, {"worker.lease_ttl": 12.5})
    assert said in str(refused.value)
    if "line" in said:
        assert "write [worker] there, and below it lease_ttl = 12.5" in str(refused.value)


SECTIONS = ("scheduler", "worker")
OLD = 77_001  # a value that stands nowhere else
TRICKY = (
    *('"# no comment"', "'[worker]'", '"""\n[worker]\nttl = 1\n"""', "'''\n# x\n'''", '"a \\" = 1"', '"""a"""""'),
    *("[1, # ]\n 2]", '[{ttl = 1}, "]"]', "nan", "1979-05-27 07:32:00", "0x1f", "true", "{}"),
)
BLANKS = st.sampled_from(["", "\n", "# [worker]\n", "  # ttl = 1\n", "\t\n"])
ENDS = st.sampled_from(["", " ", "  # as always", "\t# [x] = {"])


@st.composite
def documents(draw: st.DrawFn) -> str:
    """TOML in which some sections stand, each in one of the forms that there are."""
    top, below = [f"free{number} = {draw(st.sampled_from(TRICKY))}" for number in range(draw(st.integers(0, 2)))], []
    for section in SECTIONS:
        form = draw(st.sampled_from(["absent", "heading", "dotted", "inline", "sub"]))
        keys = [f"ttl = {OLD}"] * draw(st.booleans()) + [f"note = {draw(st.sampled_from(TRICKY))}"] * draw(
            st.booleans()
        )
        name = draw(st.sampled_from([section, f'"{section}"', f"'{section}'"]))
        if form == "heading":
            below.append("\n".join([f"[ {name} ]", *keys]))
        elif form == "sub":
            below.append(f"[{name}.deep]\nttl = 1")
        elif form == "dotted":
            top += [f"{name} . {key}" for key in keys]
        elif form == "inline":
            top.append(f"{name} = {{{', '.join(key for key in keys if chr(10) not in key)}}}")
    below += ["[[lists]]\nttl = 1\n[lists.worker]\nttl = 2"] * draw(st.booleans())
    statements = [*draw(st.permutations(top)), *draw(st.permutations(below))]
    text = "".join(f"{draw(BLANKS)}{each}{draw(ENDS)}\n" for each in statements) + draw(BLANKS)
    return text.rstrip("\n") if draw(st.booleans()) else text


CHANGES = {f"{section}.{key}": 12.5 for section in SECTIONS for key in ("ttl", "failures")} | {"grace": 12.5}


@settings(max_examples=60)
@given(documents(), st.booleans())
def test_whatever_its_form_the_values_are_as_wanted_and_not_a_character_besides(text: str, windows: bool) -> None:
    text = text.replace("\n", "\r\n") if windows else text
    wanted, now = tomllib.loads(text), text
    for name, value in CHANGES.items():
        section, _, key = name.rpartition(".")
        table = wanted.setdefault(section, {}) if section else wanted
        exchanged, table[key] = key in table, value
        then = edited(now, {name: value})
        assert repr(_sorted(tomllib.loads(then))) == repr(_sorted(wanted))
        if exchanged:
            at = next(at for at, (one, other) in enumerate(zip(now, then, strict=False)) if one != other)
            assert then == f"{now[:at]}12.5{now[at + len(str(OLD)) :]}"
            assert now.startswith(str(OLD), at)
        else:
            assert _alike(now, then) + _alike(now[::-1], then[::-1]) >= len(now), "all that was there still is"
        now = then
    assert edited(text, CHANGES) == now
    assert edited(now, CHANGES) == now


def _alike(one: str, other: str) -> int:
    return next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))


def _sorted(value: object) -> object:
    """With keys in order, so that two documents can be compared as text, where nan is nan and 1 is not 1.0."""
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


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
    with pytest.raises(BadInput, match="was changed in the meantime"):
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
