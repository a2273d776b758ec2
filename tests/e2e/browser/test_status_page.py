"""The page at `/` in a real Chromium, on a real plane: what it shows is what the API says, and nothing on it is alive.

The plane runs in a thread of this process, on a SQLite file and a port of its own, with a scheduler, loops and workers.
One browser serves all tests of this file; each has a page of its own, which must end without an error in its console.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from holdfast.ops.runbooks.model import FindingSeverity
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Heartbeat
from holdfast.plane.schedules.model import made_spec
from holdfast.types import NS
from holdfast.web import status_cache
from holdfast.web.routes import findings
from support.harness.web import TOKENS, tokens
from support.servers.browser import ARGUMENTS, CHROMIUM, HOSTILE, ME, PATIENCE_MS, Running, opened, row

READABLE = 4.5  # what WCAG asks of small text
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
CONTRAST = """(element, state) => {
    if (state) element.dataset.state = state;
    const canvas = Object.assign(document.createElement('canvas'), { width: 1, height: 1 });
    const brush = canvas.getContext('2d', { willReadFrequently: true });
    const painted = (...colours) => {
        for (const colour of colours) { brush.fillStyle = colour; brush.fillRect(0, 0, 1, 1); }
        return [...brush.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const under = [];
    for (let each = element; each; each = each.parentElement) under.unshift(getComputedStyle(each).backgroundColor);
    const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const light = (colour) => {
        const [r, g, b] = colour.map((c) => linear(c / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const [ground, ink] = [painted(...under), painted(...under, getComputedStyle(element).color)].map(light);
    return (Math.max(ground, ink) + 0.05) / (Math.min(ground, ink) + 0.05);
}"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="there is no Chromium here (Debian: the package chromium), so the page was not opened"
    ),
]


@pytest.fixture(scope="module", autouse=True)
def _quickly() -> Iterator[None]:
    """The page is told of changes every quarter of a second, so that tests wait less."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(status_cache, "INTERVAL_S", 0.25)
        patch.setattr(findings, "FRESH_S", 0.25)
        yield


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A plane that tests share, and leave as they found it."""
    with Running(tmp_path_factory.mktemp("plane")) as made:
        yield made


expect.set_options(timeout=PATIENCE_MS)


def test_jobs_move_through_their_states_and_are_counted(running: Running, chromium: Browser) -> None:
    running.go.clear()
    with opened(chromium, running.url) as page:
        held = running.submit("gate", tenant="acme")
        expect(row(page, held).locator(".chip")).to_have_text("running")
        told = running.told(f"/jobs/{held.id}")
        line = row(page, held)
        expect(line.locator(".topic")).to_have_text("gate")
        expect(line.locator(".id")).to_have_text(held.id)
        expect(line.locator(".tenant")).to_have_text("acme")
        expect(line.locator(".attempt")).to_have_text("1/3")
        expect(line.locator(".worker")).to_have_text(told["worker"])
        expect(line.locator(".fence")).to_have_text(str(told["fence"]))
        expect(page.locator('.tile[data-group="work"] .number')).to_have_text("1")
        first = line.element_handle()
        assert first is not None
        running.go.set()
        expect(line.locator(".chip")).to_have_text("succeeded")
        assert first.evaluate("(row) => row.isConnected")  # it was changed in place
        done = running.submit("double", 21)
        expect(row(page, done).locator(".chip")).to_have_text("succeeded")
        expect(page.locator("#workers .crew .name").first).to_have_text(told["worker"])
        expect(page.locator("#snapshot")).to_contain_text("Snapshot")
        expect(page.locator("#chart .good:not(.quiet)").first).to_be_attached()


def attempt(page: Page, run: str, number: int) -> Locator:
    """The state of an attempt of step `a`."""
    return page.locator(f'#job-rows tr[data-job="{run}:a@{number}"] .chip')


def test_a_step_that_succeeds_at_its_second_attempt_is_no_failure(running: Running, chromium: Browser) -> None:
    flows, steps = (
        running.plane.components.service.flows,
        {"a": {"topic": "at_second", "retry": {"retries": 1, "initial": "10ms"}}},
    )
    running.run(flows.define_document(ME, {"name": "flaky", "steps": steps}))
    with opened(chromium, running.url) as page:
        tile = page.locator('.tile[data-group="failed"]')
        before = running.told("/status")
        failed = sum(before["counts"][state] for state in ("FAILED", "TIMEOUT", "DENIED", "OUTPUT_QUARANTINED"))
        run, _ = running.run(flows.start(ME, "flaky"))
        expect(attempt(page, run.run.id, 2)).to_have_text("succeeded")
        expect(attempt(page, run.run.id, 1)).to_have_text("failed")
        rows = [page.locator(f'#job-rows tr[data-job="{run.run.id}:a@{number}"]') for number in (1, 2)]
        for number, line in enumerate(rows, 1):
            expect(line).to_contain_text(str(number))
            expect(line).not_to_contain_text("1/")
        retried = before["retried"] + 1
        expect(tile.locator(".note")).to_contain_text(f"{retried} of these retried")
        expect(tile.locator(".number")).to_have_text(str(failed - before["retried"]))


def test_the_list_is_filtered_by_state_and_text(running: Running, chromium: Browser) -> None:
    done, dead = running.submit("double", 1, tenant="filtered"), running.submit("hostile", tenant="filtered")
    with opened(chromium, running.url) as page:
        page.get_by_label("Search text").fill("filtered")
        expect(row(page, dead).locator(".chip")).to_have_text("failed")
        expect(row(page, done).locator(".chip")).to_have_text("succeeded")
        expect(page.locator("#job-rows tr")).to_have_count(2)
        page.locator('.tile[data-group="failed"]').click()
        expect(page.locator("#job-rows tr")).to_have_count(1)
        expect(row(page, dead)).to_be_visible()
        expect(page.locator('.tile[data-group="failed"]')).to_have_attribute("aria-pressed", "true")
        page.get_by_label("Search text").fill("filtered no such thing")
        expect(page.locator("#jobs-empty")).to_contain_text("matches the filter")
        page.get_by_label("Search text").fill(dead.id)
        expect(page.locator("#job-rows tr")).to_have_count(1)


def test_details_show_the_history_and_its_fences_and_follow_the_job(running: Running, chromium: Browser) -> None:
    running.go.clear()
    job = running.submit("gate", {"goal": "see"}, labels={"team": "blue"})
    with opened(chromium, running.url) as page:
        row(page, job).get_by_role("button").focus()
        page.keyboard.press("Enter")
        details = page.get_by_role("dialog")
        expect(details.locator("#details-state")).to_have_text("running")
        running.go.set()
        expect(details.locator("#details-state")).to_have_text("succeeded")
        told = running.told(f"/jobs/{job.id}/events")["items"]
        expect(details.locator(".event")).to_have_count(len(told))
        for number, event in enumerate(told):
            shown = details.locator(".event").nth(number)
            expect(shown).to_contain_text(event["after"].lower())
            expect(shown).to_contain_text("–" if event["fence"] is None else str(event["fence"]))
        whole = running.told(f"/jobs/{job.id}")
        expect(details.locator("#details-facts")).to_contain_text(str(whole["run_fence"]))
        expect(details.locator("#details-payload")).to_have_text(re.compile('"goal": "see"'))
        expect(details.locator("#details-result")).to_have_text('"through"')
        assert page.url.endswith(f"#job={job.id}")
        page.keyboard.press("Escape")
        expect(details).to_be_hidden()
        expect(row(page, job).get_by_role("button")).to_be_focused()
    with opened(chromium, f"{running.url}/#job={job.id}") as page:  # a link to a job opens it
        expect(page.locator("#details-state")).to_have_text("succeeded")


def test_a_lock_counts_down_and_is_what_the_api_says(running: Running, chromium: Browser) -> None:
    key = f"deploy:{HOSTILE}"
    locks = running.plane.components.locks
    with opened(chromium, running.url) as page:
        lease = running.run(locks.lock(key, ttl=90, auto_renew=False).acquire())
        try:
            line = page.locator("#lock-rows .lock", has_text="deploy:")
            expect(line).to_be_visible()
            (told,) = (each for each in running.told("/locks")["items"] if each["key"] == key)
            expect(line.locator(".fence")).to_have_text(str(told["fence"]))
            expect(line.locator(".holder")).to_have_text(f"held by {told['holder']}")
            expect(line.locator(".name")).to_contain_text(key)
            (seconds,) = re.findall(r"^(\d+) s$", line.locator(".left").inner_text())
            assert int(seconds) <= round(told["remaining"]) + 1
            bar = float(line.locator(".level").evaluate("(level) => level.style.getPropertyValue('--part')"))
            for fewer in (int(seconds) - 1, int(seconds) - 2):
                expect(line.locator(".left")).to_have_text(f"{fewer} s")
            assert bar > float(line.locator(".level").evaluate("(level) => level.style.getPropertyValue('--part')"))
        finally:
            running.run(lease.release())
        expect(line).to_have_count(0)
        leader = page.locator('#leaders [data-key="holdfast:reconciler:default"]')
        expect(leader.locator(".name")).to_have_text("reconciler")
        (told,) = (each for each in running.told("/locks")["items"] if each["family"] == "reconciler")
        expect(leader.locator(".holder")).to_have_text(f"led by {told['holder']}")


@pytest.mark.threat("X10")
def test_nothing_that_users_say_is_alive(running: Running, chromium: Browser) -> None:
    job = running.submit(
        "hostile", {HOSTILE: [HOSTILE]}, tenant="wild", labels={HOSTILE: HOSTILE}, trace=HOSTILE, submitted_by=HOSTILE
    )
    with opened(chromium, running.url, expected="TrustedHTML") as page:
        expect(row(page, job).locator(".chip")).to_have_text("failed")
        letter = page.locator(f'#letter-rows [data-letter="{job.id}"]')
        expect(letter.locator(".why")).to_contain_text(HOSTILE)
        letter.get_by_role("button").click()
        details = page.get_by_role("dialog")
        for part in ("#details-reason", "#details-facts", "#details-events"):
            expect(details.locator(part)).to_contain_text(HOSTILE)
        expect(details.locator("#details-payload")).to_contain_text(json.dumps(HOSTILE))
        expect(details.locator("#details-values")).to_contain_text(json.dumps([HOSTILE], separators=(",", ":")))
        details.locator(".event-trace summary").click()
        expect(details.locator(".event-trace pre")).to_contain_text(f"Fatal: cannot do {HOSTILE}")
        expect(page.locator('#finding-rows [data-rule="a job died"] .sentence')).to_contain_text(HOSTILE)
        assert page.evaluate("window.harmed === undefined")
        assert page.locator("img").count() == 1  # ours
        assert page.locator("script").count() == 1
        # The browser itself would refuse markup.
        refused = "(() => { try { document.body.innerHTML = '<b>'; return false } catch { return true } })()"
        assert page.evaluate(refused)
        page.keyboard.press("Escape")


def test_no_width_makes_the_page_overflow(running: Running, chromium: Browser) -> None:
    running.submit("double", 1, id="j" + "o" * 150, tenant="a-tenant-with-a-long-name-that-goes-on-and-on")
    with opened(chromium, running.url) as page:
        expect(page.locator("#job-rows tr").first).to_be_visible()
        for width in (390, 800, 1280):
            page.set_viewport_size({"width": width, "height": 844})
            page.locator("#job-rows tr .open").first.click()
            expect(page.locator("#details-all")).to_be_visible()
            assert page.locator("#details").evaluate("(box) => box.scrollWidth <= box.clientWidth")
            page.keyboard.press("Escape")
            wide = "[document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]"
            assert page.evaluate(wide) == [width] * 3


def test_at_1280_pixels_ages_are_whole_ids_show_their_step_and_a_gone_worker_has_no_busy_slots(
    running: Running, chromium: Browser
) -> None:
    job = running.submit("double", 1, id="run-" + "0123456789abcdef" * 4 + ":charge-the-customer")
    components = running.plane.components
    gone = Heartbeat("w-gone", "default", ("double",), 8, 7, components.clock.now().wall - 3600 * NS)
    running.run(components.workers.record(gone))
    with opened(chromium, running.url, viewport={"width": 1280, "height": 860}) as page:
        line = row(page, job)
        expect(line).to_be_visible()
        age = line.locator("td.age")
        for text in ("99 min", "9,999 d"):
            assert age.evaluate(
                "(cell, text) => { cell.textContent = text; return cell.scrollWidth <= cell.clientWidth; }", text
            )
        chip = line.locator(".chip")
        cut = """(chip, text) => {
            chip.textContent = text;
            return chip.parentElement.scrollWidth > chip.parentElement.clientWidth;
        }"""
        names = page.locator("#state optgroup").last.locator("option").all_inner_texts()
        assert [text for text in names if chip.evaluate(cut, text)] == []
        shown = line.locator(".id .end")
        expect(shown).to_have_text("charge-the-customer")
        assert shown.evaluate(
            "(end) => end.getBoundingClientRect().right <= end.closest('td').getBoundingClientRect().right"
        )
        assert line.locator(".id").get_attribute("title") == job.id
        worker = page.locator('#worker-rows [data-worker="w-gone"]')
        expect(worker.locator(".places")).to_have_text("dead")
        assert worker.locator(".level").evaluate("(level) => level.style.getPropertyValue('--part')") == "0.0000"
    running.run(components.workers.leave("w-gone"))


def test_colours_follow_the_system_and_can_be_read(running: Running, chromium: Browser) -> None:
    job = running.submit("double", 1)
    colours = set()
    with opened(chromium, running.url) as page:
        expect(row(page, job).locator(".chip")).to_have_text("succeeded")
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            colours.add(page.locator("body").evaluate("(body) => getComputedStyle(body).backgroundColor"))
            for part in (".card .note", ".tile .title", "#job-rows .tenant", "#job-rows .under", "#job-rows .id"):
                assert page.locator(part).first.evaluate(CONTRAST) >= READABLE, (scheme, part)
            for state in JobState:
                assert page.locator("#job-rows .chip").first.evaluate(CONTRAST, state) >= READABLE, (scheme, state)
            for severity in FindingSeverity:
                chip = page.locator("#finding-rows .chip").first
                chip.evaluate("(chip, severity) => { chip.dataset.severity = severity; }", str(severity))
                assert chip.evaluate(CONTRAST) >= READABLE, (scheme, severity)
    assert len(colours) == len(SCHEMES)


def test_every_control_has_a_name_and_can_be_reached_by_keyboard(running: Running, chromium: Browser) -> None:
    job = running.submit("double", 1)
    with opened(chromium, running.url) as page:
        expect(row(page, job)).to_be_visible()
        unnamed = """() => [...document.querySelectorAll('button, input, select, dialog, svg[role=img], [role=region]')]
            .filter((each) => each.checkVisibility())
            .filter((each) => !(each.innerText || each.ariaLabel || each.labels?.length
                || document.getElementById(each.getAttribute('aria-labelledby'))?.innerText))
            .map((each) => each.outerHTML.slice(0, 100))"""
        assert page.evaluate(unnamed) == []
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#jobs")).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.get_by_label("State", exact=True)).to_be_focused()


def test_an_empty_plane_says_what_to_do_next(tmp_path: Path, chromium: Browser) -> None:
    with Running(tmp_path, parts=("api",)) as made, opened(chromium, made.url) as page:
        expect(page.locator("#jobs-empty")).to_contain_text("holdfast jobs submit")
        expect(page.locator("#workers-empty")).to_contain_text("holdfast worker module:app")
        expect(page.locator("#letters-empty")).to_contain_text("No dead letters")
        expect(page.locator("#leaderless")).to_contain_text("reconciler")


def test_findings_name_the_cause_with_evidence_and_commands_that_can_be_copied(
    tmp_path: Path, chromium: Browser
) -> None:
    with Running(tmp_path, parts=("api",)) as made:
        job = made.submit("nowhere", tenant="acme")
        with opened(chromium, made.url, permissions=["clipboard-read", "clipboard-write"]) as page:
            findings = page.locator("#findings")
            expect(findings).to_have_attribute("data-severity", "act")
            expect(page.locator("#findings-note")).to_contain_text("2 causes to act on")
            told = made.told("/findings")["findings"]
            assert [each["rule"] for each in told] == ["no leaders", "topic without workers"]
            shown = findings.locator(".finding")
            expect(shown).to_have_count(len(told))
            expect(shown.first.locator(".chip")).to_have_text("act now")
            cause = findings.locator('[data-rule="topic without workers"]')
            expect(cause.locator(".sentence")).to_contain_text("No live worker serves topic nowhere: 1 job waits")
            expect(cause.locator(".command")).to_have_text([each["command"] for each in told[1]["next"]])
            cause.get_by_text("Evidence").click()
            expect(cause.locator(".evidence")).to_contain_text(f"{job.id} of acme (nowhere) waits")
            cause.get_by_role("button", name=f"Copy: holdfast jobs show {job.id}").click()
            expect(cause.get_by_text("Copied")).to_be_visible()
            assert page.evaluate("navigator.clipboard.readText()") == f"holdfast jobs show {job.id}"
            # Without TLS, browsers refuse the clipboard to pages of other hosts.
            page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(); }")
            cause.get_by_role("button", name=f"Copy: holdfast jobs show {job.id}").click()
            assert page.evaluate("getSelection().toString()").strip() == f"holdfast jobs show {job.id}"


def test_schedules_show_their_due_times_state_and_last_job(tmp_path: Path, chromium: Browser) -> None:
    with Running(tmp_path, parts=("api",)) as made:
        with opened(chromium, made.url) as page:
            expect(page.locator("#jobs-title")).to_be_visible()
            expect(page.locator("#schedules")).to_be_hidden()
        service = made.plane.components.service.schedules
        made.run(service.put(ME, made_spec("nightly", "double", tenant="acme", cron="0 3 1 1 *", tz="Europe/Berlin")))
        made.run(service.put(ME, made_spec("often", "double", every="1d")))
        made.run(service.pause(ME, "often", reason="incident 7"))
        job, _ = made.run(service.run(ME, "often"))
        with opened(chromium, made.url) as page:
            nightly, often = (page.locator(f'[data-schedule="{name}"]') for name in ("nightly", "often"))
            expect(page.locator("#schedules-note")).to_have_text("2 schedules, 1 paused")
            expect(nightly).to_contain_text("acme / nightly")
            expect(nightly).to_contain_text("0 3 1 1 * (Europe/Berlin)")
            expect(nightly).to_contain_text("no job yet")
            expect(often).to_contain_text(f"paused by {ME.name}")
            often.get_by_role("button", name="last job").click()
            expect(page.locator("#details-title")).to_be_visible()
            expect(page.locator("#details")).to_contain_text(job.id)


def test_a_server_that_goes_is_said_to_be_gone_and_is_found_again(tmp_path: Path, chromium: Browser) -> None:
    with Running(tmp_path) as made, opened(chromium, made.url, expected="ERR_CONNECTION|503") as page:
        before = made.submit("double", 1)
        expect(row(page, before).locator(".chip")).to_have_text("succeeded")
        expect(page.locator("#banner")).to_be_hidden()
        made.stop()  # with the page open: it holds up nothing
        expect(page.locator("#banner")).to_contain_text("Disconnected")
        expect(page.locator("#banner")).to_contain_text("stale")
        expect(page.locator("#link-text")).to_have_text("disconnected")
        expect(page.locator("body")).to_have_attribute("data-stale", "yes")
        expect(row(page, before)).to_be_visible()
        made.start()
        expect(page.locator("#banner")).to_be_hidden()
        expect(page.locator("#link-text")).to_contain_text("live")
        after = made.submit("double", 2)
        expect(row(page, after).locator(".chip")).to_have_text("succeeded")
        expect(row(page, before)).to_be_visible()


def test_the_user_signs_in_with_a_token_that_stays_in_the_tab_and_signs_out(tmp_path: Path, chromium: Browser) -> None:
    with Running(tmp_path, tokens(), parts=("api",)) as made:
        blue, red = made.submit("double", 1, tenant="blue"), made.submit("double", 1, tenant="red")
        with opened(chromium, made.url, expected="401") as page:
            form = page.locator("#sign-in")
            expect(form).to_be_visible()
            expect(page.locator("#board")).to_be_hidden()
            page.get_by_label("API token", exact=True).fill("not-a-token-that-is-known")
            page.keyboard.press("Enter")
            expect(form.locator(".problem")).to_contain_text("Sign-in failed: the token is not known")
            page.get_by_label("API token", exact=True).fill(TOKENS["viewer"])
            page.get_by_role("button", name="Sign in").click()
            expect(row(page, blue)).to_be_visible()
            expect(row(page, red)).to_be_visible()
            page.reload()
            expect(row(page, blue)).to_be_visible()
            assert TOKENS["viewer"] not in page.content()
            assert page.evaluate("localStorage.length") == 0
            assert page.context.cookies() == []
            page.get_by_role("button", name="Sign out").click()
            expect(form).to_be_visible()
            page.get_by_label("API token", exact=True).fill(TOKENS["blue-viewer"])
            page.keyboard.press("Enter")
            expect(row(page, blue)).to_be_visible()
            expect(row(page, red)).to_have_count(0)
            expect(page.locator("#scope")).to_have_text("tenant blue")
            expect(page.locator("#locks-empty")).to_contain_text("your token is bound to one")
            expect(page.locator("#findings")).to_be_hidden()
