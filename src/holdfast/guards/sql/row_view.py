"""A row inside a section, as it was read: a mapping that knows whether the row exists, and ends with its section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.errors import Closed, RowMissing
from holdfast.guards.sql.rows import Found


class RowView(Mapping[str, Any]):
    """The columns of one row. After a write it shows what was written."""

    def __init__(self, resource: str, found: Found | None) -> None:
        self._resource = resource
        self._found = found
        self._closed = False

    @property
    def exists(self) -> bool:
        """Whether there is such a row."""
        return self._found is not None

    def end(self) -> None:
        """The section has ended: values that were read stay readable, and no write is possible any more."""
        self._closed = True

    def __getitem__(self, column: str) -> Any:
        return self._columns()[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns())

    def __len__(self) -> int:
        return len(self._columns())

    def __bool__(self) -> bool:
        return self.exists

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._resource} {self._found if self.exists else 'does not exist'}>"

    def _columns(self) -> Found:
        if self._found is None:
            raise RowMissing(f"{self._resource} does not exist")
        return self._found

    def _merged(self, values: Mapping[str, Any] | None, columns: Mapping[str, Any]) -> dict[str, Any]:
        """The values of one write, from a mapping and from keywords."""
        if self._closed:
            raise Closed(f"the section on {self._resource} is over; enter it again")
        return {**(values or {}), **columns}
