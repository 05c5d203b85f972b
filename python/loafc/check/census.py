"""``python -m loafc.check census``: how many of the operator calls of real models loafc lowers to loops.

Each example of the census is compiled alone; one whose program still calls a library is not lowered. An operator's
calls count by the share of its examples that are, and its complex results, which no loop computes, as not lowered.
Matrix products, convolutions, attention, sorting and random numbers are to stay calls and don't count; neither does
taking an item of a tuple, which is no operator.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..demo import print_table
from ..errors import CompileError
from ..externs import find_operator
from .aot import compiled
from .call_text import UnreadableCall, read_call

DEFAULT_CENSUS = Path("../shared/ops.json")

# Of all calls that count, this many are to be lowered.
LEAST_PERCENT = 99.0

_STAY_CALLS = ("matmul/conv/attention", "rng")
_STAY_CALLS_BY_NAME = ("aten.sort.", "aten.topk.", "transformers.grouped_mm")
_NO_OPERATOR = "_operator.getitem"


@dataclass(frozen=True)
class Row:
    """An operator of the census: its calls, those of them that are lowered, and why the others are not."""

    operator: str
    calls: int
    lowered: float
    reason: str

    @property
    def missing(self) -> float:
        return self.calls - self.lowered


def rows_of(census: dict[str, Any]) -> Iterable[Row]:
    """The operators that count, the most called first."""
    for name, entry in sorted(census.items(), key=lambda item: -item[1]["calls"]):
        stays = entry["category"] in _STAY_CALLS or name.startswith(_STAY_CALLS_BY_NAME)
        # What only core ATen's table leaves whole is called as often as that table says.
        calls = entry["calls"] or entry["calls_core_aten"]
        if not stays and name != _NO_OPERATOR and calls:
            yield row_of(name, calls, entry)


def row_of(name: str, calls: int, entry: dict[str, Any]) -> Row:
    """Compiles an operator's examples."""
    verdicts = [why_not_lowered(name, text) for text in entry["examples"] if not _is_complex(text)]
    reasons = [v for v in verdicts if v is not None]
    share = 1 - len(reasons) / len(verdicts) if verdicts else 0.0
    dtypes = entry["out_dtypes"]
    in_complex = sum(n for dtype, n in dtypes.items() if "complex" in dtype)
    if in_complex or not verdicts:
        share *= 1 - in_complex / max(sum(dtypes.values()), 1)
        reasons.append("complex numbers")
    return Row(name, calls, calls * share, "; ".join(dict.fromkeys(reasons)))


def _is_complex(text: str) -> bool:
    return "complex" in text


def why_not_lowered(operator: str, text: str) -> str | None:
    """Compiles one call; None when nothing of it stays a call into a library."""
    try:
        args, kwargs = read_call(text)
        target = find_operator(operator)
    except (UnreadableCall, CompileError) as error:
        return str(error)
    leaves, structure = tree_flatten((args, kwargs))
    positions = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    externs: list[str] = []

    def call(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for k, tensor in zip(positions, tensors, strict=True):
            filled[k] = tensor
        inner_args, inner_kwargs = tree_unflatten(filled, structure)
        return target(*inner_args, **inner_kwargs)

    def observe(graph: Any) -> None:
        report = json.loads(graph.report.to_json())
        externs.extend(call["op"] for call in report["extern_calls"])

    try:
        compiled(call, observe)(*[leaves[k] for k in positions])
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:120]
    return f"calls {', '.join(dict.fromkeys(externs))}" if externs else None


def _cells(row: Row) -> dict[str, str]:
    return {
        "operator": row.operator,
        "calls": str(row.calls),
        "not lowered": f"{row.missing:.1f}",
        "because": row.reason,
    }


def main(args: list[str]) -> int:
    """Prints what is not lowered, and the share of what is; status 1 when that is below the bar."""
    parser = argparse.ArgumentParser("python -m loafc.check census", description=__doc__)
    parser.add_argument("--ops", type=Path, default=DEFAULT_CENSUS, help=f"the census (default: {DEFAULT_CENSUS})")
    parser.add_argument("--json", type=Path, help="write all operators to this file")
    options = parser.parse_args(args)
    try:
        census = json.loads(options.ops.read_text())
    except (OSError, ValueError) as error:
        print(f"the census can't be read: {error}", file=sys.stderr)
        return 2
    with torch.no_grad():
        rows = list(rows_of(census))
    missing = [row for row in rows if row.missing > 0]
    if missing:
        print_table([_cells(row) for row in sorted(missing, key=lambda r: -r.missing)])
    calls, lowered = sum(r.calls for r in rows), sum(r.lowered for r in rows)
    percent = 100 * lowered / calls
    print(
        f"{lowered:.0f} of {calls} calls of {len(rows)} operators are lowered: {percent:.2f} % (bar: {LEAST_PERCENT} %)"
    )
    if options.json is not None:
        document = [{"operator": r.operator, "calls": r.calls, "lowered": r.lowered, "reason": r.reason} for r in rows]
        options.json.write_text(json.dumps(document, indent=1))
    return 0 if percent >= LEAST_PERCENT else 1
