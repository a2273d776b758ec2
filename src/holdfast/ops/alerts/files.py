"""Alert rules and their tests as files: for Prometheus, and for `promtool test rules`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.errors import Misconfigured
from holdfast.ops.alerts import groups
from holdfast.ops.alerts.plan import Plan

MADE_BY: Final = "# Made by `holdfast alerts` from the settings of this plane; make it anew when they change.\n"


def rules_document(plan: Plan) -> dict[str, Any]:
    """The rules as Prometheus reads them. Groups of several planes have names of their own."""
    plane = "".join(f"-{value}" for value in plan.match.values())
    return {
        "groups": [
            {"name": f"{group.name}{plane}", "rules": [each.as_rule(plan.match) for each in group.rules]}
            for group in groups(plan)
        ]
    }


def yaml_text(document: Mapping[str, Any]) -> str:
    """A document as YAML that people can read."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise Misconfigured("alert rules as YAML need PyYAML: pip install 'holdfast[plane]', or use --json") from None
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the same text, six times as fast, where it was built
    text: str = yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True, width=100_000)
    return MADE_BY + text
