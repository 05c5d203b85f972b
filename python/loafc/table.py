"""Tables as benchmarks and the demo print them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """The rows, columns aligned; keys that start with an underscore are not shown."""
    keys = [k for k in rows[0] if not k.startswith("_")]
    widths = [max(len(k), *(len(str(r[k])) for r in rows)) for k in keys]
    for cells in (keys, ["-" * w for w in widths], *([str(r[k]) for k in keys] for r in rows)):
        aligned = [c.ljust(w) if n == 0 else c.rjust(w) for n, (c, w) in enumerate(zip(cells, widths, strict=True))]
        print("  ".join(aligned).rstrip())
