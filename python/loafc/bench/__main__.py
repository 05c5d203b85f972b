"""``python -m loafc.bench NAME [options]`` runs a benchmark; ``NAME --help`` tells its options."""

from __future__ import annotations

import sys

from ..dispatch import run_command

BENCHMARKS = ("scheduler", "cpu", "overhead", "steps", "memory")


def main(args: list[str]) -> int:
    """Runs the benchmark that the first argument names; returns the exit status."""
    return run_command("loafc.bench", BENCHMARKS, args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
