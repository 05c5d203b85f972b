"""``python -m loafc.bench NAME [options]`` runs a benchmark; ``NAME --help`` tells its options."""

from __future__ import annotations

import importlib
import sys

BENCHMARKS = ("scheduler", "cpu", "overhead", "steps")


def main(args: list[str]) -> int:
    """Runs the benchmark that the first argument names; returns the exit status."""
    if not args or args[0] not in BENCHMARKS:
        print(f"usage: python -m loafc.bench {{{','.join(BENCHMARKS)}}} [options]", file=sys.stderr)
        return 2
    # Only the one that runs: what the others import takes seconds.
    return importlib.import_module(f".{args[0]}", __package__).main(args[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
