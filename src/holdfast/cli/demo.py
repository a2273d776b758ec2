"""`holdfast demo`: what Holdfast promises, shown live on real processes, with a verdict at the end.

Three acts: workers contend for one lock; one is frozen for longer than its lease and wakes up; another is killed. The
verdict is read from what the store, the guarded table and the workers recorded, not from the script of the play.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import quote

import typer
from rich.text import Text

import holdfast
from holdfast.blocking.locks import Locks
from holdfast.cli.demo_account import Account
from holdfast.cli.demo_stage import Actor, Cast, Event, Show, Stalled
from holdfast.cli.exits import Exit
from holdfast.cli.lease_stores import url_of
from holdfast.cli.options import OwnUrl
from holdfast.cli.screen import cell, plain_table, put_json
from holdfast.errors import BackendError, BadInput

TIMES = 5
BONUS = 100
LONG_TTL = 30.0
FREEZES_MAX = 20
KEY, NIGHTLY = "account:42", "report:nightly"


class Promise(NamedTuple):
    """One promise, and what became of it."""

    promise: str
    kept: bool
    numbers: str


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    context: typer.Context,
    url: OwnUrl = None,
    fast: Annotated[bool, typer.Option("--fast", help="Short leases and no pauses for reading.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print events and the verdict as JSON lines.")] = False,
) -> int:
    """Show what happens when workers contend, freeze and die.

    Live, with real processes, in about 20 seconds. Uses a new SQLite file unless --url is given. Exits 0 when every
    promise was kept, and 1 when not.
    """
    show = Show(as_json=json, fast=fast)
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as directory:
        store = url_of(context, url) or f"sqlite:///{quote(directory)}/leases.db"
        account = Path(directory) / "account.db"
        with (
            holdfast.connect(store, service="director", request_timeout=30) as locks,
            holdfast.connect(store, service="director", request_timeout=1) as probe,
        ):
            if not locks.capabilities.shared:
                raise BadInput("url", "a private store has no other processes", "use sqlite:///leases.db or redis://…")
            _busy_keys(locks)
            with Account(str(account), "director") as resource, Cast(store, account) as cast:
                play = Play(show, locks, probe, cast, resource, fast=fast)
                try:
                    play.perform()
                except Stalled as stalled:
                    play.verdict.append(Promise("the demonstration goes on", kept=False, numbers=str(stalled)))
                except KeyboardInterrupt:
                    show.console.print("\nended early; no verdict")
                    return Exit.SIGNALLED + 2
                return _finish(show, play.verdict)


def _busy_keys(locks: Locks) -> None:
    for key in (KEY, NIGHTLY):
        look = locks.inspect(key)
        if look.held:
            raise BadInput(
                "url", f"{key} is held there by {look.owner}", "use a store of its own for the demonstration"
            )


class Play:
    """The three acts."""

    def __init__(self, show: Show, locks: Locks, probe: Locks, cast: Cast, account: Account, *, fast: bool) -> None:
        self._show = show
        self._locks = locks
        self._probe = probe
        self._cast = cast
        self._account = account
        self._ttl = 1.0 if fast else 3.0
        # Only the embedded store can prove that a process of this host is dead; others wait for the lease to run out.
        self._early = locks.capabilities.engine == "sqlite" and sys.platform == "linux"
        self.verdict: list[Promise] = []

    def perform(self) -> None:
        """All of it."""
        where = "one SQLite file" if self._locks.capabilities.engine == "sqlite" else self._locks.capabilities.engine
        if not self._show.json:
            self._show.console.print(Text(f"Holdfast, live: real worker processes, real locks, {where}.", style="bold"))
        self._contend()
        self._show.beat(2)
        self._freeze()
        self._show.beat(2)
        self._kill()
        self._show.beat(1.5)

    def _contend(self) -> None:
        names = ("ada", "ben", "cleo", "dan")
        self._show.act(
            1,
            "Four workers, one lock",
            f"Each reads a balance, adds 1 and writes it back, {TIMES} times. Without a lock, updates would be lost.",
        )
        crew = self._cast.enter(*names)
        for actor in crew:
            actor.order("add", key=KEY, ttl=LONG_TTL, times=TIMES)
        for _ in crew:
            self._cast.next("done", seen=self._show_added)
        self._cast.dismiss(*crew)
        deeds = self._account.history()
        grants = [deed.fence for deed in deeds if deed.what == "enter"]
        inside, overlaps = 0, 0
        for deed in deeds:
            inside += (deed.what == "enter") - (deed.what == "leave")
            overlaps += inside > 1
        wanted, balance = TIMES * len(names), self._account.balance()
        self._promise(
            "one owner at a time", overlaps == 0 and len(grants) == wanted, f"{len(grants)} grants, {overlaps} overlaps"
        )
        self._promise("no update is lost", balance == wanted, f"{wanted} additions, balance {balance}")

    def _show_added(self, event: Event) -> None:
        if event.name == "added":
            before, after = event.fields["before"], event.fields["after"]
            words = f"fence {event.fields['fence']}   balance {before:>2} → {after:>2}"
            self._show.line(event.worker, "granted", words, **event.fields)

    def _freeze(self) -> None:
        self._show.act(
            2,
            "An owner is frozen for longer than its lease, and wakes up",
            "As by a long garbage collection, swapping, a suspended machine. It does not know that it slept.",
        )
        ada, ben = self._cast.enter("ada", "ben")
        ada.order("take", key=KEY, ttl=self._ttl)
        mine = self._cast.next("granted", worker="ada").fields
        read, old = mine["balance"], mine["fence"]
        self._show.line("ada", "granted", f"fence {old}   lease of {self._ttl:g} s; reads balance {read}", **mine)
        self._freeze_between_writes(ada)
        self._show.line("-", "SIGSTOP", "ada is frozen just before she writes what she has in mind")
        ben.order("take", key=KEY, ttl=LONG_TTL)
        self._cast.next("asking", worker="ben")
        self._show.line("ben", "waits", "for the same lock; nobody renews ada's lease now")
        his = self._cast.next("granted", worker="ben").fields
        new = his["fence"]
        self._show.line(
            "ben", "granted", f"fence {new}   ada's lease ran out after {his['waited']:.1f} s of waiting", **his
        )
        ben.order("write", amount=BONUS)
        wrote = self._cast.next("wrote", worker="ben").fields
        self._show.line("ben", "writes", f"balance {wrote['before']} → {wrote['after']}, and keeps the lock", good=True)
        self._show.beat(1)
        ada.thaw()
        ada.order("insist", amount=1)
        self._show.line("-", "SIGCONT", "ada wakes up and goes on as if nothing had happened")
        self._show.beat(1)
        self._judge_stale(old, new, wrote["after"])
        ben.order("give_back")
        self._cast.next("gave_back", worker="ben")
        self._cast.dismiss(ada, ben)

    def _freeze_between_writes(self, actor: Actor) -> None:
        """Freeze a worker, but not in the middle of a write to the store's own file: that would hold up everybody."""
        for _ in range(FREEZES_MAX):  # nearly always the first one does
            actor.freeze()
            try:
                self._probe.ping()
            except BackendError:
                actor.thaw()
            else:
                return
        raise Stalled("the store could not be written while a worker was frozen")

    def _judge_stale(self, old: int, new: int, balance: int) -> None:
        """What became of the three things that the frozen owner tried."""
        renewal = self._cast.next("renewal", worker="ada").fields["accepted"]
        self._refusal("renews", refused=not renewal, words="lock not owned", event="renewal")
        release = self._cast.next("release", worker="ada").fields["accepted"]
        look = self._locks.inspect(KEY)
        still = look.held and look.fence == new
        self._refusal(
            "releases", refused=not release and still, words="lock not owned; ben still has it", event="release"
        )
        late = self._cast.next("wrote", worker="ada").fields
        intact = self._account.balance() == balance
        self._refusal(
            "writes",
            refused=not late["accepted"] and intact,
            words=f"fence …{old % 10**6:06d} is older than …{new % 10**6:06d}; "
            f"the balance stays {self._account.balance()}",
            event="write",
        )
        standing = self._cast.next("standing", worker="ada").fields
        self._show.line(
            "ada", "asks", f"her lease, and is told: lost ({standing['reason']})", good=not standing["held"]
        )
        deeds = self._account.history()
        writes = [deed for deed in deeds if deed.what == "write" and deed.fence == old]
        accepted = sum(deed.accepted for deed in writes)
        fences = [deed.fence for deed in deeds if deed.what == "enter" and deed.accepted]
        rising = all(first < second for first, second in itertools.pairwise(fences))
        self._promise("fences strictly rise", rising, f"{len(fences)} grants of {KEY}")
        self._promise("a stale renewal is refused", not renewal, f"1 tried, {int(renewal)} accepted")
        self._promise("a stale release is refused", not release and still, f"1 tried, {int(release)} accepted")
        self._promise(
            "a stale write changes nothing", accepted == 0 and intact, f"{len(writes)} tried, {accepted} accepted"
        )
        self._promise("a late owner is told", not standing["held"], f"lease lost: {standing['reason']}")

    def _kill(self) -> None:
        ttl = LONG_TTL if self._early else self._ttl
        self._show.act(
            3,
            "An owner is killed",
            "Its process is provably dead, so nobody has to wait until its lease runs out."
            if self._early
            else "Its lease runs out, and the next in line takes over.",
        )
        cleo, dan = self._cast.enter("cleo", "dan")
        cleo.order("take", key=NIGHTLY, ttl=ttl)
        hers = self._cast.next("granted", worker="cleo").fields
        self._show.line("cleo", "granted", f"fence {hers['fence']}   lease of {ttl:g} s", **hers)
        dan.order("take", key=NIGHTLY, ttl=LONG_TTL)
        self._cast.next("asking", worker="dan")
        self._show.line("dan", "waits", "for the same lock")
        self._until_waiting()
        died = time.monotonic()
        self._cast.dismiss(cleo)
        self._show.line("-", "SIGKILL", f"cleo is dead; her lease would have lasted up to {ttl:g} s")
        event = self._cast.next("granted", worker="dan")
        took = event.at - died
        self._show.line(
            "dan", "granted", f"fence {event.fields['fence']}   took over after {took:.2f} s", good=True, **event.fields
        )
        risen = event.fields["fence"] > hers["fence"]
        bound = f"lease of {ttl:g} s" + (", not waited for" if self._early else "")
        self._promise(
            "a dead owner is replaced", risen and (took < ttl or not self._early), f"after {took:.2f} s ({bound})"
        )
        dan.order("give_back")
        self._cast.next("gave_back", worker="dan")
        self._cast.dismiss(dan)

    def _until_waiting(self) -> None:
        """Give the waiter the chance to queue up in the store; where the store does not show waiters, go on."""
        limit = time.monotonic() + 2
        while self._locks.inspect(NIGHTLY).waiters == 0 and time.monotonic() < limit:
            time.sleep(0.02)

    def _refusal(self, what: str, *, refused: bool, words: str, event: str) -> None:
        text = f"refused: {words}" if refused else "ACCEPTED, and must not be"
        self._show.line("ada", what, text, good=refused, attempt=event, refused=refused)
        self._show.beat(0.8)

    def _promise(self, promise: str, kept: bool, numbers: str) -> None:
        self.verdict.append(Promise(promise, kept, numbers))


def _finish(show: Show, verdict: list[Promise]) -> int:
    kept = all(each.kept for each in verdict)
    if show.json:
        put_json({"event": "verdict", "kept": kept, "promises": [each._asdict() for each in verdict]})
        return Exit.OK if kept else Exit.NO
    table = plain_table(("PROMISE", "left"), ("", "left"), ("SEEN", "left"))
    for each in verdict:
        word = cell("kept", "green") if each.kept else cell("BROKEN", "bold red")
        table.add_row(cell(each.promise), word, cell(each.numbers))
    show.console.print()
    show.console.print(Text("Verdict", style="bold"))
    show.console.print()
    show.console.print(table)
    show.console.print()
    broken = sum(not each.kept for each in verdict)
    line = f"all {len(verdict)} promises kept" if kept else f"{broken} of {len(verdict)} promises BROKEN"
    show.console.print(Text(line, style="bold green" if kept else "bold red"))
    show.console.print()
    show.console.print(Text("Next", style="bold"))
    for command, words in _NEXT:
        show.console.print(Text.assemble((f"   {command:<44}", "cyan"), words), soft_wrap=True)
    return Exit.OK if kept else Exit.NO


_NEXT = (
    ("holdfast run nightly -- ./backup.sh", "run a command while holding a lock"),
    ("holdfast watch", "see live who holds what"),
    ("docs/quickstart.md", "locks in Python, in ten minutes"),
    ("docs/guarantees.md", "what is promised, on which store"),
)
