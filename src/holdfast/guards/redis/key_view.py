"""A key inside a section, as it was read: what it holds, whether it exists. It ends with its section."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, TypeAlias

from holdfast.errors import Closed, Misconfigured

Kind: TypeAlias = Literal["none", "string", "hash"]


class Content(NamedTuple):
    """What a key holds: nothing (None), a string, or a hash (a dict)."""

    kind: Kind
    value: Any


NOTHING: Final = Content("none", None)


class KeyView:
    """One guarded key. After a write it shows what was written."""

    def __init__(self, key: str, content: Content) -> None:
        self.key = key
        self._content = content
        self._closed = False

    @property
    def exists(self) -> bool:
        """Whether the key holds anything."""
        return self._content.kind != "none"

    @property
    def value(self) -> Any:
        """The string: bytes, or text if the client decodes. None if there is nothing."""
        if self._content.kind == "hash":
            raise Misconfigured(f"{self.key} holds a hash: read its fields")
        return self._content.value

    @property
    def fields(self) -> dict[Any, Any]:
        """The fields of the hash, a copy. Empty if there is nothing."""
        if self._content.kind == "string":
            raise Misconfigured(f"{self.key} holds a string: read its value")
        return dict(self._content.value or {})

    def end(self) -> None:
        """The section has ended: values that were read stay readable, and no write is possible any more."""
        self._closed = True

    def __bool__(self) -> bool:
        return self.exists

    def __repr__(self) -> str:
        # Not the value: it may be large, and it is the caller's to show.
        return f"<{type(self).__name__} {self.key!r} {self._content.kind if self.exists else 'does not exist'}>"

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the section on {self.key} is over; enter it again")

    def _merge(self, written: dict[Any, Any]) -> None:
        self._content = Content("hash", {**self._known_fields(), **written})

    def _without(self, removed: frozenset[Any]) -> None:
        left = {field: value for field, value in self._known_fields().items() if field not in removed}
        self._content = Content("hash", left) if left else NOTHING

    def _known_fields(self) -> dict[Any, Any]:
        # A string that was here has expired meanwhile, if fields could be written.
        return self._content.value if self._content.kind == "hash" else {}
