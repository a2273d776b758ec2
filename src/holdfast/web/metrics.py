"""Statistics as Prometheus text (version 0.0.4). Reads what the parts count; counts nothing itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from holdfast.plane.service import Caller, Service

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_EVERYONE: Final = Caller("metrics")


@dataclass(frozen=True, slots=True)
class Sample:
    """One number."""

    name: str
    kind: Literal["counter", "gauge", "untyped"]
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def rendered(samples: Iterable[Sample]) -> str:
    """The text, with the samples of one name together, as the format demands."""
    families: dict[str, list[Sample]] = {}
    for sample in samples:
        families.setdefault(sample.name, []).append(sample)
    lines: list[str] = []
    for name, members in families.items():
        lines += [f"# HELP {name} {_escaped(members[0].help)}", f"# TYPE {name} {members[0].kind}"]
        lines += [f"{name}{_labels(each.labels)} {_number(each.value)}" for each in members]
    return "\n".join(lines) + "\n"


async def samples(service: Service, answers: Counter[tuple[str, int]]) -> list[Sample]:
    """What the plane says about itself now."""
    parts = service.parts
    live = await service.counts(_EVERYONE, finished=False)
    found = [
        Sample("holdfast_plane_jobs", "gauge", "Jobs that are not over, by state.", number, {"state": str(state)})
        for state, number in live.items()
    ]
    found += [
        Sample(
            "holdfast_http_requests_total",
            "counter",
            "Requests answered.",
            number,
            {"method": method, "status": str(status)},
        )
        for (method, status), number in sorted(answers.items())
    ]
    ends = "Second ends of one job that were refused. There should be none."
    found.append(Sample("holdfast_plane_duplicate_ends_total", "counter", ends, parts.store.duplicate_ends))
    for about, thing in (
        ("guard", parts.store),
        ("database", parts.database),
        ("bus", parts.bus),
        ("leases", parts.locks),
    ):
        found += _of(about, thing)
    return found


def _of(about: str, thing: Any) -> Iterator[Sample]:
    """What a part counts, under the names that it gives. It does not say which of them only rise."""
    counted = thing.statistics() if hasattr(thing, "statistics") else {}
    numbers = counted if isinstance(counted, Mapping) else asdict(counted)
    for name, value in numbers.items():
        yield Sample(
            f"holdfast_plane_{about}", "untyped", f"Statistics of the {about}.", float(value), {"of": str(name)}
        )


def _labels(labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{name}="{_escaped(value, quotes=True)}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _escaped(text: str, *, quotes: bool = False) -> str:
    plain = text.replace("\\", "\\\\").replace("\n", "\\n")
    return plain.replace('"', '\\"') if quotes else plain


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
