"""The audit ledger: an append-only record of lease events."""

from holdfast.observe.ledger.reader import Findings, Wanted, read
from holdfast.observe.ledger.writer import Ledger

__all__ = ["Findings", "Ledger", "Wanted", "read"]
