"""Every fuzz target, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fuzzing import target_documents, target_http, target_urls, target_values, target_wire
from fuzzing.target import Target

TARGETS: Final[Mapping[str, Target]] = {
    each.name: each
    for module in (target_urls, target_values, target_documents, target_wire, target_http)
    for each in module.TARGETS
}


def closed() -> None:
    """End what the targets have begun, and take away what they have written."""
    target_http.ended()
    target_wire.ended()
    target_documents.cleared()
