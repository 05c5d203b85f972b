"""What benchmarks have in common: how they read a count and how they average ratios."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence


def positive(text: str) -> int:
    """A number of runs from the command line: at least one."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least one")
    return value


def geometric_mean(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return math.exp(statistics.fmean(map(math.log, values))) if values else None
