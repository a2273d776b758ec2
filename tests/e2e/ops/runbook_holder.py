"""Holds three leases until they are lost, and writes an audit ledger: `runbook_holder.py URL LEDGER`."""

from __future__ import annotations

import sys

import holdfast
from holdfast.observe.ledger.writer import Ledger

if __name__ == "__main__":
    with Ledger(sys.argv[2]) as ledger, holdfast.connect(sys.argv[1], service="worker", observers=[ledger]) as locks:
        leases = [locks.lock(f"job:{each}", ttl=1.0, family="scheduler.job").acquire() for each in range(3)]
        print("held", flush=True)
        for lease in leases:
            lease.lost.wait()
