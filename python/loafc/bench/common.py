"""What benchmarks have in common: how they read a count, average ratios, keep libraries quiet, and end."""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import warnings
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


def silence_libraries() -> None:
    """Hides warnings of PyTorch and transformers that say nothing about what is measured."""
    warnings.filterwarnings("ignore", message=".*(?:pin_memory|torch.distributed|lr_scheduler|loss_type).*")


def status_of(problems: Sequence[str]) -> int:
    """Prints what is worse than it may be; returns the exit status."""
    for problem in problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    return 1 if problems else 0
