"""A plane that is given an app knows its workflows from the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.plane import App, Flow
from holdfast.plane.model.caller import Caller
from holdfast.plane.process.plane import Plane
from holdfast.plane.settings.settings import Settings

pytestmark = pytest.mark.asyncio

ME = Caller("test")


def an_app(value: int) -> App:
    app = App("greeting")

    @app.job("greet")
    async def answer(payload: object) -> None: ...

    @app.workflow("greet")
    def greet(flow: Flow) -> None:
        flow.transform("answer", value)

    return app


async def version(tmp_path: Path, app: App) -> tuple[int, str]:
    """The newest version after a plane with this app has started, and who has kept it."""
    settings = Settings(database=f"sqlite:///{tmp_path / 'plane.db'}?synchronous=normal")
    async with Plane(settings, {"worker"}, app=app) as plane:
        found = await plane.components.flows.definition(ME, "greet")
        return found.workflow.version, found.created_by


async def test_the_workflows_of_an_app_are_kept_once_and_a_changed_one_is_the_next_version(tmp_path: Path) -> None:
    assert await version(tmp_path, an_app(1)) == (1, "app greeting")
    assert await version(tmp_path, an_app(1)) == (1, "app greeting")
    assert await version(tmp_path, an_app(2)) == (2, "app greeting")
