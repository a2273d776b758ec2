"""Patterns for names: `*` stands for any text, also none, `?` for one character, and all else for itself. Pure.

Nothing is special but these two, so that a name can be written down as it is: `job[1].*` means what it says. Capitals
count. Whatever the pattern, matching takes at most its length times that of the text.
"""

from __future__ import annotations


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text is what the pattern describes."""
    at = read = 0
    star, resume = -1, 0  # the last `*`, and how much of the text is left to what follows it
    while read < len(text):
        if at < len(pattern) and pattern[at] == "*":
            star, resume = at, read
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", text[read]):
            at += 1
            read += 1
        elif star >= 0:
            resume += 1  # the `*` takes one more character; an earlier one need never be asked again
            at, read = star + 1, resume
        else:
            return False
    return all(each == "*" for each in pattern[at:])
