"""The HTTP guard keeps the contract of every guard: a real server in its own process, and each client library."""

from __future__ import annotations

from functools import partial

import pytest

from holdfast.guards.conformance import Check, checks_for, run_check
from support.guards.subjects_http import AsyncHttpSubject, HttpSubject, RequestsSubject


@pytest.mark.requires("R28", "R34", "R47")
@pytest.mark.parametrize("check", checks_for(deletes=True), ids=str)
def test_httpx_keeps_the_contract(document_service: str, check: Check) -> None:
    run_check(check, partial(HttpSubject, document_service), threads=4)


@pytest.mark.requires("R28", "R34", "R47")
@pytest.mark.parametrize("check", checks_for(deletes=True, processes=False), ids=str)
def test_awaited_httpx_keeps_the_contract(document_service: str, check: Check) -> None:
    run_check(check, partial(AsyncHttpSubject, document_service), asynchronous=True, threads=4)


@pytest.mark.requires("R28", "R34", "R47")
@pytest.mark.parametrize("check", checks_for(deletes=True, processes=False), ids=str)
def test_requests_keeps_the_contract(document_service: str, check: Check) -> None:
    run_check(check, partial(RequestsSubject, document_service), threads=4)
