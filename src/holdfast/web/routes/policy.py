"""Routes for the error policy: the modes of risk classes when the lease store fails, who switched them, and why."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from holdfast.plane.policy.model import PolicySource
from holdfast.web.middleware.auth import Asking, Role, Serving, needs
from holdfast.web.middleware.json_body import JsonRoute
from holdfast.web.schemas.policy import (
    ChangeList,
    ChangeShown,
    HistoryFilter,
    JitterSwitched,
    PolicyShown,
    SwitchedShown,
    SwitchJitter,
    SwitchPolicy,
)

router = APIRouter(tags=["error policy"], route_class=JsonRoute)


@router.get("/policy", dependencies=[needs(Role.VIEWER, everywhere=True)], summary="The error policy")
async def policy(service: Serving) -> PolicyShown:
    """The mode of each risk class when the lease store fails, and recent fallbacks."""
    return PolicyShown.of(await service.policy.show())


@router.put("/policy", dependencies=[needs(Role.OPERATOR, everywhere=True)], summary="Switch a risk class")
async def switch_policy(body: SwitchPolicy, service: Serving, caller: Asking) -> SwitchedShown:
    """Switch one risk class, immediately and in all processes. 409 if it was changed since `expect`."""
    standing, changed = await service.policy.set(
        body.risk, body.mode, actor=caller.name, reason=body.reason, source=PolicySource.API, expect=body.expect
    )
    return SwitchedShown.after(standing, changed=changed)


@router.put(
    "/policy/busy_jitter",
    dependencies=[needs(Role.OPERATOR, everywhere=True)],
    summary="Switch the jitter of busy retries",
)
async def switch_jitter(body: SwitchJitter, service: Serving, caller: Asking) -> JitterSwitched:
    """Switch it in all processes, without a restart; 0 is the fixed delay. 409 if it was changed since `expect`."""
    standing, changed = await service.policy.set_jitter(
        body.seconds, actor=caller.name, reason=body.reason, source=PolicySource.API, expect=body.expect
    )
    return JitterSwitched.after(standing, changed=changed)


@router.get("/policy/history", dependencies=[needs(Role.VIEWER, everywhere=True)], summary="Who switched what, and why")
async def policy_history(service: Serving, which: Annotated[HistoryFilter, Query()]) -> ChangeList:
    """Every switch of a risk class or of the busy jitter, newest first."""
    found = await service.policy.history(which.limit, which.risk, below=which.below)
    return ChangeList(items=[ChangeShown.of(each) for each in found])
