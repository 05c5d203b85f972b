"""Bar charts as SVG, written without a plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_LABELS = 190
_WIDTH = 560
_ROW = 24
_TOP = 64
_COLORS = ("#1f6f8b", "#d08c3f")


@dataclass(frozen=True)
class Bars:
    """A label with one value for each series; None where there is nothing to show."""

    label: str
    values: Sequence[float | None]


def bar_chart(title: str, series: Sequence[str], rows: Sequence[Bars], limit: float, marks: Sequence[float]) -> str:
    """A horizontal bar chart from 0 to ``limit``, at which longer bars are cut; ``marks`` are lines across it."""
    height = _TOP + _ROW * len(rows) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LABELS + _WIDTH + 60}" height="{height}"'
        ' font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="20" font-size="14">{escape(title)}</text>',
    ]
    for k, name in enumerate(series):
        x = _LABELS + 120 * k
        parts.append(f'<rect x="{x}" y="30" width="10" height="10" fill="{_COLORS[k]}"/>')
        parts.append(f'<text x="{x + 15}" y="39">{escape(name)}</text>')
    for mark in marks:
        x = _LABELS + _WIDTH * mark / limit
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4}" y2="{height - 12}" stroke="#bbb"/>')
        parts.append(f'<text x="{x:.1f}" y="{_TOP - 8}" text-anchor="middle" fill="#666">{mark:g}</text>')
    for n, row in enumerate(rows):
        parts += _bars(row, _TOP + _ROW * n, limit)
    return "\n".join([*parts, "</svg>", ""])


def _bars(row: Bars, y: float, limit: float) -> list[str]:
    parts = [f'<text x="{_LABELS - 6}" y="{y + 14}" text-anchor="end">{escape(row.label)}</text>']
    thickness = (_ROW - 6) / len(row.values)
    for k, value in enumerate(row.values):
        if value is None:
            continue
        top = y + 2 + thickness * k
        width = _WIDTH * min(value, limit) / limit
        parts.append(
            f'<rect x="{_LABELS}" y="{top:.1f}" width="{width:.1f}" height="{thickness - 1:.1f}" fill="{_COLORS[k]}"/>'
        )
        parts.append(
            f'<text x="{_LABELS + width + 4:.1f}" y="{top + thickness - 1:.1f}" font-size="9">{value:.2f}</text>'
        )
    return parts
