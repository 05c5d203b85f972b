"""``python -m loafc.check NAME [options]`` runs a check; ``NAME --help`` tells its options."""

from __future__ import annotations

import importlib
import sys

# Each is a module of this package with a `main(args) -> int`. Only the one that is asked for is imported: some need
# packages that the others don't.
CHECKS = ("census", "models", "operators")


def main(args: list[str]) -> int:
    """Runs the check that the first argument names; returns the exit status."""
    if not args or args[0] not in CHECKS:
        print(f"usage: python -m loafc.check {{{','.join(CHECKS)}}} [options]", file=sys.stderr)
        return 2
    return importlib.import_module(f".{args[0]}", __package__).main(args[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
