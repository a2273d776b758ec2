"""API tokens that expire, and token files that change while the server runs."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from holdfast.cli.server.http_server import TokenFile, access_for, tokens_in
from holdfast.errors import BadInput
from holdfast.web.middleware.auth import Access, Role, TokenEntry, digest_of
from support.harness.web import TOKENS, stage_at

pytestmark = pytest.mark.threat("X1")

SOON = datetime.now(UTC) + timedelta(days=1)
PAST = datetime.now(timezone(timedelta(hours=2))) - timedelta(seconds=1)


def entry(name: str, expires: str = "") -> str:
    return f'[[tokens]]\nname = "{name}"\ndigest = "{digest_of(TOKENS[name])}"\nroles = ["viewer"]\n{expires}\n'


@pytest.mark.asyncio
async def test_an_expired_token_is_refused_and_the_answer_says_so(tmp_path: Path) -> None:
    valid = TokenEntry("viewer", digest_of(TOKENS["viewer"]), (Role.VIEWER,), expires=SOON)
    over = TokenEntry("operator", digest_of(TOKENS["operator"]), (Role.OPERATOR,), expires=PAST)
    async with stage_at(tmp_path, Access([valid, over])) as stage:
        async with stage.client("viewer") as client:
            assert (await client.get("/jobs")).status_code == 200
        async with stage.client("operator") as client:
            answer = await client.get("/jobs")
    assert answer.status_code == 401
    assert answer.json()["code"] == "unauthorized"
    assert answer.json()["detail"] == "the token has expired; get a new one"
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]


@pytest.mark.parametrize("expires", ["expires = 2027-01-31", "expires = 2027-01-31T12:00:00", 'expires = "soon"'])
def test_a_moment_needs_its_offset(tmp_path: Path, expires: str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(entry("viewer", expires))
    with pytest.raises(BadInput, match="expires is not a time"):
        tokens_in(str(path))
    path.write_text(entry("viewer", "expires = 2027-01-31T12:00:00+01:00"))
    (found,) = tokens_in(str(path))
    assert found.expires == datetime(2027, 1, 31, 11, tzinfo=UTC)


def replace(path: Path, text: str) -> None:
    """As an operator does: whole."""
    draft = path.with_name("draft")
    draft.write_text(text)
    draft.replace(path)


def test_a_changed_file_counts_without_a_restart_and_a_wrong_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(TokenFile.__init__, "__defaults__", (lambda: now[0],))
    path = tmp_path / "tokens.toml"
    path.write_text(entry("viewer"))
    access = access_for("0.0.0.0", str(path))

    def names() -> list[str]:
        now[0] += 1.5
        return [name for name in ("viewer", "admin") if access.principal(f"Bearer {TOKENS[name]}") is not None]

    assert names() == ["viewer"]
    replace(path, entry("viewer") + entry("admin"))
    assert names() == ["viewer", "admin"]
    replace(path, entry("admin"))  # withdrawn
    assert names() == ["admin"]
    with caplog.at_level(logging.WARNING):
        for wrong in ("[[tokens", "", entry("viewer") + entry("viewer"), "x" * 1_000_001):
            replace(path, wrong)
            assert names() == ["admin"]
        path.unlink()
        assert names() == ["admin"]
    told = [each for each in caplog.records if "cannot be used" in each.getMessage()]
    assert told
    assert TOKENS["admin"] not in caplog.text
    path.write_text(entry("viewer"))
    assert names() == ["viewer"]


def test_a_file_is_looked_at_once_a_second(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(entry("viewer"))
    now = [0.0]
    file = TokenFile(str(path), lambda: now[0])
    replace(path, entry("admin"))
    assert file.changed() is None
    now[0] = 1.0
    (found,) = file.changed() or []
    assert found.name == "admin"
    now[0] = 9.0
    assert file.changed() is None
