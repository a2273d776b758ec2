"""The report of a drill: one self-contained HTML file, readable in light and dark mode, with SVG pictures.

Promises: no resource is loaded, no script runs, and external values (names of workers, keys, error texts) are escaped.
It contains no token and no password, because no record does and URLs are redacted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files
from typing import Final

from holdfast import __version__
from holdfast.core.history.invariants import Breach, described
from holdfast.drills.catalog import drill
from holdfast.drills.model import DrillVerdict, Guard, JudgedScene, scores
from holdfast.drills.report.charts import curves, lines, takeovers
from holdfast.drills.report.json import kinds
from holdfast.drills.report.timeline import timeline
from holdfast.drills.verdict.leases import grants, plain, slowest
from holdfast.types import NS

_STYLE = files("holdfast.drills.report") / "report.css"
_GUARDS: Final = {Guard.OFF: "off", Guard.WRITES: "writes only", Guard.ON: "on", None: "–"}
LOSSES_MAX: Final = 6


def page(verdict: DrillVerdict, when: str) -> str:
    """The whole page. `when` is the time as text."""
    return "".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>Holdfast drill: {escape(verdict.drill)}, {_word(verdict)}</title>",
            f"<style>{_STYLE.read_text(encoding='utf-8')}</style></head><body><main>",
            *_head(verdict, when),
            *(part for each in verdict.judged for part in _scene(each)),
            *_end(verdict),
            "</main></body></html>\n",
        )
    )


def _word(verdict: DrillVerdict) -> str:
    return "passed" if verdict.passed else "failed"


def _head(verdict: DrillVerdict, when: str) -> Iterator[str]:
    what = drill(verdict.drill)
    yield f'<p class="quiet">Holdfast {escape(__version__)} · {escape(when)}</p>'
    yield f"<h1>Drill: {escape(verdict.drill)}</h1><p>{escape(what.shows)}</p>"
    yield f'<div class="verdict {"" if verdict.passed else "failed"}"><b>{"PASS" if verdict.passed else "FAIL"}</b>'
    yield f"<div>{escape(summary(verdict))}</div></div>"
    facts = {
        "store": verdict.store,
        "TTL": f"{verdict.ttl_s:g} s",
        "takeover SLO": f"{verdict.slo_s:g} s",
        "took": f"{verdict.took_s:.1f} s",
    }
    yield '<ul class="facts">'
    yield from (f"<li><span>{name}</span> {escape(value)}</li>" for name, value in facts.items())
    yield "</ul>"
    yield from (f'<p class="shown">Left out: {escape(each)}.</p>' for each in verdict.cannot)
    yield '<div class="wide"><table><tr><th>scene</th><th>guards</th><th class="number">grants</th>'
    yield '<th class="number">updates lost</th><th class="number">stale steps refused</th>'
    yield '<th class="number">slowest takeover</th><th>verdict</th></tr>'
    for each in verdict.judged:
        yield _row(each)
    yield "</table></div>"


def summary(verdict: DrillVerdict) -> str:
    """The verdict in one or two sentences."""
    incidents = scores([each.scene for each in verdict.judged])
    if incidents:
        named = sum(each.found for each in incidents)
        return f"{named} of {len(incidents)} incidents were named as the first finding, with the next command."
    bare = sum(each.lost for each in verdict.judged if each.scene.bites)
    guarded = [each for each in verdict.judged if each.scene.guard is Guard.ON]
    words = []
    compared = any(each.scene.bites for each in verdict.judged)
    if compared:
        words.append(f"Without full guards {bare} acknowledged {'update was' if bare == 1 else 'updates were'} lost.")
    if guarded:
        lost = sum(each.lost for each in guarded)
        refused = sum(each.refused for each in guarded)
        turned = f", and {refused} stale {'step was' if refused == 1 else 'steps were'} refused" if refused else ""
        many = "was" if lost == 1 else "were"
        gone = (
            f"{lost or 'none'} {many}" if compared else f"{lost or 'no'} acknowledged update{'s' * (lost != 1)} {many}"
        )
        words.append(f"With guards {gone} lost{turned}.")
    found = slowest([each for judged in verdict.judged for each in judged.scene.takeovers])
    if found is not None:
        words.append(f"The slowest takeover took {found.took_ns / NS:.2f} s (SLO {found.slo_ns / NS:g} s).")
    problems = sum(len(each.problems) for each in verdict.judged)
    if problems:
        words.append(f"{problems} {'problem' if problems == 1 else 'problems'} occurred, see below.")
    return " ".join(words) or "Everything ended as expected."


def _row(judged: JudgedScene) -> str:
    found = slowest(judged.scene.takeovers)
    took = "–" if found is None else f"{found.took_ns / NS:.2f} s"
    lost = f'<span class="{"shown" if judged.scene.bites else "bad"}">{judged.lost}</span>' if judged.lost else "0"
    cells = (
        f"<td>{escape(judged.scene.title)}</td><td>{_GUARDS[judged.scene.guard]}</td>",
        f'<td class="number">{len(grants(judged.scene.history))}</td><td class="number">{lost}</td>',
        f'<td class="number">{judged.refused}</td><td class="number">{took}</td><td>{outcome(judged)}</td>',
    )
    return f"<tr>{''.join(cells)}</tr>"


def outcome(judged: JudgedScene) -> str:
    """The verdict about a scene, in a word or two."""
    if not judged.ok:
        return '<span class="bad">failed</span>'
    if judged.scene.bites:
        return '<span class="shown">loss shown</span>'
    return '<span class="good">as expected</span>'


def _scene(judged: JudgedScene) -> Iterator[str]:
    scene = judged.scene
    done = scene.done[:1].upper() + scene.done[1:]
    yield f"<h2>{escape(scene.title[:1].upper() + scene.title[1:])}</h2><p>{escape(done)}</p>"
    yield from (f'<blockquote class="broken">{escape(each)}</blockquote>' for each in judged.problems)
    yield from _figure(timeline(scene), "Holders of the lock, and results of writes")
    yield from _figure(curves(scene.curves, scene.spans), "Frequency over time")
    for plot in scene.plots:
        yield from _figure(lines(plot), plot.title)
    yield from _losses(judged.losses, "Lost updates")
    yield from _losses(judged.violations, "Violated rules")
    yield from _losses(judged.excused, "Observed violations that this store permits under such a fault")
    yield from _figure(takeovers(scene.takeovers), "Takeovers against the SLO")
    if scene.figures:
        yield "<h3>Figures</h3>" + _table(("", "", ""), ((each.name, each.value, each.note) for each in scene.figures))
    if scene.claims:
        yield '<h3>Required conditions</h3><table class="figures">'
        for text, kept, seen in dict.fromkeys(scene.claims):
            word = '<td class="good">kept</td>' if kept else '<td class="bad">BROKEN</td>'
            yield f"<tr><td>{escape(text)}</td>{word}<td>{escape(seen)}</td></tr>"
        yield "</table>"
    counted = ", ".join(f"{number} {kind}" for kind, number in kinds(scene.history).items())
    unread = f"; {scene.unread} unfinished lines of killed processes" if scene.unread else ""
    if scene.history:
        yield f'<p class="quiet">History: {len(scene.history)} records ({escape(counted)}{unread}).</p>'


def _figure(picture: str | None, caption: str) -> Iterator[str]:
    if picture is not None:
        yield f"<figure><figcaption>{escape(caption)}</figcaption>{picture}</figure>"


def _losses(found: Iterable[Breach], heading: str) -> Iterator[str]:
    every = list(found)
    if not every:
        return
    yield f"<h3>{escape(heading)}</h3>"
    for each in every[:LOSSES_MAX]:
        records = "\n".join(described(record) for record in (each.first, each.second) if record is not None)
        yield f'<blockquote>{escape(plain(each))} <span class="quiet">({each.rule})</span>'
        yield f"<pre>{escape(records)}</pre></blockquote>"
    if len(every) > LOSSES_MAX:
        yield f'<p class="quiet">… and {len(every) - LOSSES_MAX} more of this kind.</p>'


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in heads) if any(heads) else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(each)}</td>' for each in row)}</tr>" for row in rows)
    return f'<table class="figures">{f"<tr>{head}</tr>" if head else ""}{body}</table>'


def _end(verdict: DrillVerdict) -> Iterator[str]:
    yield "<h2>Repeat this drill</h2>"
    yield f"<pre>{escape(verdict.replay)}</pre>"
    yield (
        '<p class="quiet">The rules are those of <code>holdfast check</code>: C1–C3 fences are unique and rise, C4 no '
        "two owners hold a lock concurrently, C5 no older fence is accepted, C6 no acknowledged write is overwritten "
        "unread, C7 no write is refused without cause, C8 only the owner renews and releases. Histories are the audit "
        "ledgers of the workers and the resource's own record of accepted writes. A drill shows that a failure is "
        "survived; it does not show that no other failure exists.</p>"
    )
