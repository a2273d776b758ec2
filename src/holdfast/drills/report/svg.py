"""SVG drawing as text: a few shapes with classes, which the page colors for light and dark mode.

Promises: all input is escaped; nothing refers to anything outside of the picture.
"""

from __future__ import annotations

from html import escape
from typing import Final

WIDE: Final = 960
_CHARACTER: Final = 6.4  # pixels of one character of the small type, on the safe side


class Drawing:
    """A picture. Coordinates are pixels, from the upper left corner."""

    def __init__(self, height: float, title: str) -> None:
        self._height = height
        self._title = title
        self._parts: list[str] = []

    def rect(self, x: float, y: float, wide: float, high: float, kind: str, told: str = "") -> None:
        """A filled rectangle; `told` is its tooltip."""
        shape = f'x="{x:.1f}" y="{y:.1f}" width="{max(wide, 0.6):.1f}" height="{high:.1f}"'
        self._parts.append(f'<rect class="{kind}" {shape}>{_told(told)}</rect>')

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: str) -> None:
        """A straight line."""
        self._parts.append(f'<line class="{kind}" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>')

    def path(self, points: list[tuple[float, float]], kind: str) -> None:
        """A line through points."""
        told = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polyline class="{kind}" points="{told}"/>')

    def dot(self, x: float, y: float, kind: str, told: str = "", radius: float = 4.5) -> None:
        """A point."""
        self._parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}">{_told(told)}</circle>')

    def cross(self, x: float, y: float, kind: str, told: str = "", size: float = 5) -> None:
        """A cross."""
        arms = f"M{x - size:.1f} {y - size:.1f}l{2 * size} {2 * size}m0 {-2 * size}l{-2 * size} {2 * size}"
        self._parts.append(f'<path class="{kind}" d="{arms}">{_told(told)}</path>')

    def text(self, x: float, y: float, words: str, kind: str = "label", anchor: str = "start") -> None:
        """Words."""
        self._parts.append(
            f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def markup(self) -> str:
        """The picture."""
        hatch = (
            '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>'
        )
        head = (
            f'<svg viewBox="0 0 {WIDE} {self._height:.0f}" role="img" aria-label="{escape(self._title, quote=True)}">'
        )
        return f"{head}{hatch}{''.join(self._parts)}</svg>"


def width_of(words: str) -> float:
    """The approximate width of a text."""
    return len(words) * _CHARACTER


def _told(words: str) -> str:
    return f"<title>{escape(words)}</title>" if words else ""
