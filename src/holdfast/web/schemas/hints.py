"""Accepted values of request fields in words: the fix in the error about an invalid field. Pure.

The words come from the API's description, so the two never differ, and name both limits and not only the one that was
exceeded. Patterns have words here; a test finds one without.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

Schema: TypeAlias = Mapping[str, Any]
Place: TypeAlias = Sequence[str | int]

SEE: Final = "see the API's description"
"""For a field that the description does not know."""

CHARACTERS: Final[Mapping[str, str]] = {
    r"^[ -~]+$": "printable ASCII",
    r"^[ -~]*$": "printable ASCII",
    r"^[ -~]*[!-~][ -~]*$": "printable ASCII, and not spaces alone",
    r"^[!-~]+$": "printable ASCII without spaces",
    r"^[ -z|~]+$": "printable ASCII without { and }",
    r"^[ -z|~]*$": "printable ASCII without { and }",
    r"^[ -z|~]*[!-z|~][ -z|~]*$": "printable ASCII without { and }, and not spaces alone",
    r"^([0-9]{1,19}(\.[0-9]{1,19}){2})?$": "the `id` of an update: three numbers with dots between; or nothing",
    r"^[0-9a-z.]+$": "small letters, digits and dots",
    r"^[A-Za-z0-9._:/-]+$": "letters, digits and . _ : / -",
    r"^[A-Za-z0-9][A-Za-z0-9_-]*$": "letters, digits and _ -, the first a letter or a digit",
    r"^[A-Za-z0-9][A-Za-z0-9._:/\[\]-]*$": "letters, digits and . _ : / [ ] -, the first a letter or a digit",
    r"^[A-Za-z0-9][A-Za-z0-9._:@/\[\]-]*$": "letters, digits and . _ : @ / [ ] -, the first a letter or a digit",
}

_PLAIN: Final[Mapping[str, str]] = {"boolean": "true or false", "null": "null", "array": "a list"}

A_NAME: Final = "[key]"
"""Last part of a position in the framework's errors if a name is invalid, and not its value."""


class FieldHints:
    """The accepted fields of one operation."""

    def __init__(self, document: Schema, operation: Schema) -> None:
        self._document = document
        self._operation = operation

    def fix(self, kind: str, place: Place) -> str:
        """The fix for an error of this kind at a position, both as the framework names them."""
        if kind == "extra_forbidden":
            return f"leave it out; known are {', '.join(self._names(place[:-1]))}"
        words = self._words(self._at(place))
        if not words:
            return SEE
        if place[-1] == A_NAME:
            return f"use a name of {words}"
        return f"give it: {words}" if kind == "missing" else f"give {words}"

    def _names(self, place: Place) -> list[str]:
        if place[0] == "body":
            return sorted(self._at(place).get("properties", ()))
        return sorted(each["name"] for each in self._operation.get("parameters", ()) if each["in"] == place[0])

    def _at(self, place: Place) -> Schema:
        """The schema at a position; empty: there is none."""
        if place[0] != "body":
            known = self._operation.get("parameters", ())
            named = (each["schema"] for each in known if (each["in"], each["name"]) == tuple(place[:2]))
            return _given(self._whole(next(named, {})))
        content = self._operation.get("requestBody", {}).get("content", {})
        body = self._whole(content.get("application/json", {}).get("schema", {}))
        if place[-1] == A_NAME:
            return {"type": "string", **self._inside(body, place[1:-2]).get("propertyNames", {})}
        return self._inside(body, place[1:])

    def _inside(self, schema: Schema, steps: Place) -> Schema:
        for step in steps:
            item = schema.get("items") if isinstance(step, int) else None
            member = schema.get("properties", {}).get(step) or schema.get("additionalProperties") or item
            schema = self._whole(member or {})
        return schema

    def _whole(self, schema: Schema) -> Schema:
        """Without references; for a nullable object, the object."""
        while "$ref" in schema:
            schema = self._document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        objects = [each for each in map(self._whole, schema.get("anyOf", ())) if "properties" in each]
        return objects[0] if objects else schema

    def _words(self, schema: Schema) -> str:
        if "anyOf" in schema:
            return "; or ".join(self._words(self._whole(each)) for each in schema["anyOf"])
        if "enum" in schema:
            return f"one of {', '.join(map(str, schema['enum']))}"
        kind = schema.get("type", "")
        if kind in ("integer", "number"):
            what = "a whole number" if kind == "integer" else "a number"
            return f"{what} from {_number(schema['minimum'])} to {_number(schema['maximum'])}"
        if kind == "string":
            return _text(schema)
        if kind == "object":
            return _object(schema)
        return _PLAIN.get(kind, "")


def _given(schema: Schema) -> Schema:
    """Of a parameter, which is omitted rather than null."""
    found = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    return found[0] if len(found) == 1 else schema


def _text(schema: Schema) -> str:
    pattern = schema.get("pattern", "")
    least = schema.get("minLength", 0 if re.match(pattern, "") else 1)
    most = schema.get("maxLength")
    count = f"{least} to {most} characters" if least else f"at most {most} characters"
    return count if not pattern else f"{count}: {CHARACTERS.get(pattern, SEE)}"


def _object(schema: Schema) -> str:
    if "maxProperties" in schema:
        return f"an object with at most {schema['maxProperties']} members"
    required = schema.get("required", ())
    return f"an object with {', '.join(required)}" if required else "an object"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)
