"""The page about HTTP says who may do what, and which codes there are, as the program does."""

from __future__ import annotations

from holdfast.web import problem_codes
from holdfast.web.app import description, needed
from support.source_tree import ROOT

PAGE = ROOT / "docs" / "http.md"


def roles() -> str:
    """Who may do what, as a table."""
    lines = ["| ask | to | role | also bound to a tenant |", "|---|---|---|---|"]
    needs = needed()
    for path, methods in description()["paths"].items():
        for method, operation in methods.items():
            need = needs.get(operation["operationId"])
            if need is not None:
                does = operation["summary"][0].lower() + operation["summary"][1:]
                bound = "no" if need.everywhere else "yes"
                lines.append(f"| `{method.upper()} {path}` | {does} | {need.role} | {bound} |")
    return "\n".join(lines) + "\n"


def test_the_roles_on_the_page_are_those_of_the_routes() -> None:
    assert roles() in PAGE.read_text(encoding="utf-8"), roles()


def test_the_codes_on_the_page_are_those_of_the_program() -> None:
    assert problem_codes.table() in PAGE.read_text(encoding="utf-8"), problem_codes.table()
