"""Words from a fixed list that are looked up in tables many times for every lease and job. Pure."""

from __future__ import annotations

from enum import StrEnum


class TextEnum(StrEnum):
    """A list of words, each of which is its own text, also as a key.

    An enumeration hashes its members by calling Python code for each look into a table or set; here the hash is that of
    the text, which is what it compares equal to.
    """

    __hash__ = str.__hash__
