"""Holders of a lease that are killed at every failpoint between asking for it and giving it back, one after another.

Each takes the lock that the one before died with, reads a balance under it, adds 1 through a guard, renews and gives
the lock back. What is printed is a summary; the histories are left for the checker.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import holdfast
from e2e.failpoints.lives import Death, Life, Say, deaths, live, recorded
from holdfast.drills.model import Guard
from holdfast.drills.verdict.account import Account, Balance
from holdfast.observe.ledger.writer import Ledger

KEY = "balance"
PATIENCE_S = 20.0  # far below the TTL: the successor of a dead process does not wait for it


def hold(place: Path, number: int, say: Say) -> None:
    ledger = Ledger(place / "ledger", everything=True, sync=None)
    account = Account(place / "account.db", Guard.ON, ledger)
    with holdfast.connect(f"sqlite:///{place / 'leases.db'}", service=f"life-{number}", observers=[ledger]) as locks:
        lease = locks.lock(KEY, ttl=600, family="drill").acquire(timeout=PATIENCE_S)
        found = account.read(lease)
        assert found is not None
        lease.renew()
        new = Balance(found.balance + 1, number)
        accepted = account.write(lease, new, found.version, f"life-{number}")
        say({"wrote": number, "accepted": accepted})
        lease.release()
    ledger.close()
    account.close()


def main() -> None:
    place = Path(sys.argv[1])
    with Account(place / "account.db", Guard.ON) as account:
        account.open(KEY)
    lives: list[Life] = []

    def one(death: Death | None = None) -> None:
        number = len(lives) + 1
        lives.append(live(lambda say: hold(place, number, say), death))

    one()
    points = recorded(lambda say: hold(place, 2, say))
    lives.append(Life(killed=False, said=[{"wrote": 2, "accepted": True}]))
    planned = deaths(points, lambda _: 99)
    for death in planned:
        one(death)
    one()
    with Account(place / "account.db", Guard.ON) as account:
        balance = account.inspect(KEY).balance
    killed = sum(each.killed for each in lives)
    acknowledged = sum(said["accepted"] for each in lives for said in each.said)
    told = {"lives": len(lives), "killed": killed, "missed": len(planned) - killed, "acknowledged": acknowledged}
    print(json.dumps({**told, "balance": balance, "points": sorted(set(points))}))


if __name__ == "__main__":
    main()
