"""``python -m loafc.PACKAGE NAME [options]``: runs one command out of a package of them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence


def run_command(package: str, names: Sequence[str], args: Sequence[str]) -> int:
    """Runs the command that the first argument names, with the others; returns the exit status.

    Each is a module of ``package`` with a ``main(args) -> int``. Only the one that is asked for is imported: it takes
    seconds, and some need packages that the others don't.
    """
    if not args or args[0] not in names:
        print(f"usage: python -m {package} {{{','.join(names)}}} [options]", file=sys.stderr)
        return 2
    return importlib.import_module(f".{args[0]}", package).main(list(args[1:]))
