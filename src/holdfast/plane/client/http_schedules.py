"""Schedules of a plane through its HTTP API."""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import quote

from holdfast.plane.client.schedules import ScheduleView
from holdfast.plane.client.views import JobView
from holdfast.plane.schedules.model import ScheduleSpec
from holdfast.types import NS

PAGE = 500


class _Ask(Protocol):
    async def __call__(self, method: str, path: str, body: Any = None) -> Any: ...


class HttpSchedules:
    """See `ScheduleTransport`."""

    def __init__(self, ask: _Ask, tenant: str | None) -> None:
        """`ask` sends a request and returns the document of the answer, or raises."""
        self._ask = ask
        self._tenant = tenant

    async def put_schedule(self, spec: ScheduleSpec, *, paused: bool, replace: bool) -> ScheduleView:
        """See `ScheduleTransport`."""
        document = spec.document()
        for name in ("every", "offset", "jitter", "timeout", "deadline"):
            length_ns = document.pop(f"{name}_ns")
            document[name] = None if length_ns is None else length_ns / NS
        body = {name: value for name, value in document.items() if value is not None}
        tenant = spec.tenant if spec.tenant != "default" or self._tenant is not None else None
        path = self._path(spec.name, tenant=tenant)
        return ScheduleView.parsed(await self._ask("PUT", path, {**body, "paused": paused, "replace": replace}))

    async def schedules(self) -> list[ScheduleView]:
        """See `ScheduleTransport`."""
        found: list[ScheduleView] = []
        cursor: str | None = None
        while True:
            after = "" if cursor is None else f"&cursor={quote(cursor, safe='')}"
            which = "" if self._tenant is None else f"&tenant={quote(self._tenant, safe='')}"
            page = await self._ask("GET", f"/schedules?limit={PAGE}{which}{after}")
            found += map(ScheduleView.parsed, page["items"])
            cursor = page["next"]
            if cursor is None:
                return found

    async def schedule(self, name: str) -> ScheduleView:
        """See `ScheduleTransport`."""
        return ScheduleView.parsed(await self._ask("GET", self._path(name)))

    async def pause_schedule(self, name: str, reason: str) -> ScheduleView:
        """See `ScheduleTransport`."""
        return ScheduleView.parsed(await self._ask("POST", self._path(name, "/pause"), {"reason": reason}))

    async def resume_schedule(self, name: str) -> ScheduleView:
        """See `ScheduleTransport`."""
        return ScheduleView.parsed(await self._ask("POST", self._path(name, "/resume")))

    async def run_schedule(self, name: str, identity: str) -> JobView:
        """See `ScheduleTransport`."""
        return JobView.parsed(await self._ask("POST", self._path(name, "/run"), {"id": identity}))

    async def delete_schedule(self, name: str) -> None:
        """See `ScheduleTransport`."""
        await self._ask("DELETE", self._path(name))

    def _path(self, name: str, action: str = "", *, tenant: str | None = None) -> str:
        whose = self._tenant if tenant is None else tenant
        which = "" if whose is None else f"?tenant={quote(whose, safe='')}"
        return f"/schedules/{quote(name, safe='')}{action}{which}"
