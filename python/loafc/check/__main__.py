"""``python -m loafc.check NAME [options]`` runs a check; ``NAME --help`` tells its options."""

from __future__ import annotations

import sys

from ..dispatch import run_command

CHECKS = ("census", "models", "operators")


def main(args: list[str]) -> int:
    """Runs the check that the first argument names; returns the exit status."""
    return run_command("loafc.check", CHECKS, args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
