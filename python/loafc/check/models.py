"""``python -m loafc.check models``: the models of a zoo, compiled, give what eager mode gives, without fallback.

Each model runs in a process of its own, so that a crash is a finding. A difference that eager mode also shows when its
weights move by a rounding is rounding (``sensitivity.py``), unless it is still there in a more precise type: float64,
or float32 for a model in bfloat16 that eager mode can't run in float64. What differs otherwise is compared with
``aot_eager``, which traces in the same way but computes with eager mode's operators: what is the same as there isn't
the compiler's and is told as such.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .model_run import DTYPES, KINDS, load_zoo

DEFAULT_ZOO = Path("../shared/models/zoo.py")
SECONDS = 1800

# What ends the check with status 1.
FAILURES = ("different", "fallback", "error", "crash")

# In float64, errors are at most this part of what is allowed. What a program itself computes in float32 is rounded even
# there; a mistake that is larger than allowed in the model's own type is as large in float64.
_EXACT = 0.05

# The types that are more precise, best first.
_BETTER = {"fp32": ("fp64",), "bf16": ("fp64", "fp32"), "fp64": ()}


@dataclass
class Row:
    """One part of one model: how it ended, and everything that was found: beside eager mode, with ``aot_eager``
    instead of loafc, loafc beside that, and in the more precise type ``exact_in``."""

    model: str
    suite: str
    kind: str
    finding: dict[str, Any]
    aot_eager: dict[str, Any] | None = field(default=None)
    beside_aot_eager: dict[str, Any] | None = field(default=None)
    exact: dict[str, Any] | None = field(default=None)
    exact_in: str = ""

    @property
    def status(self) -> str:
        """``same``, ``rounding``, ``as aot_eager``, ``not there``, ``eager fails``, ``eager varies`` each time, or
        one of the failures."""
        status = self.finding["status"]
        if status == "rounding" and not self._is_exact():
            return "different"
        return "as aot_eager" if status in ("different", "error") and self._is_shared() else status

    def _is_exact(self) -> bool:
        """Whether a more precise type has no difference. Where eager mode has none to offer, nothing is held against
        the model."""
        if self.exact is None or self.exact["status"] == "eager fails":
            return True
        if self.exact_in == "fp32":
            return self.exact["status"] in ("same", "rounding")
        return self.exact["status"] == "same" and self.exact["severity"] <= _EXACT

    def _is_shared(self) -> bool:
        if self.finding["status"] != "error":
            return self.beside_aot_eager is not None and self.beside_aot_eager["status"] in ("same", "rounding")
        other = self.aot_eager
        if other is None or other["status"] != "error":
            return False
        return other["detail"].split(":")[0] == self.finding["detail"].split(":")[0]

    def text(self) -> str:
        """One line, and the details of what isn't the same."""
        found = self.finding
        line = f"{self.model:32} {self.kind:10} {self.status:12}"
        if "kernels" in found:
            line += (
                f" {found['graphs']:3} graphs {found['kernels']:5} kernels, worst {found.get('severity', 0.0):8.3g}"
                f" of allowed, {sum(found['compile_seconds'].values()):6.2f} s compiling"
            )
        if self.status in ("same", "not there"):
            return line
        line += f"\n    {found['detail']}"
        if moves := found.get("moves"):
            line += f"\n    eager mode moves by {moves['largest']:.2g} of the scale when its weights do by a rounding;"
            line += f" loafc differs by {moves['severity']:.2g} of what that allows"
            line += "".join(f"\n        {text}" for text in moves["beyond"])
        others = [("aot_eager", self.aot_eager), ("beside aot_eager", self.beside_aot_eager)]
        for name, other in [*others, (f"in {self.exact_in}", self.exact)]:
            if other is not None:
                line += f"\n    {name}: {other['status']}, worst {other.get('severity', 0.0):.3g} of allowed"
                line += f": {other['detail']}" if other["detail"] else ""
        return line

    def to_json(self) -> dict[str, Any]:
        """Everything."""
        return {
            "model": self.model,
            "suite": self.suite,
            "kind": self.kind,
            "status": self.status,
            "loafc": self.finding,
            "aot_eager": self.aot_eager,
            "beside_aot_eager": self.beside_aot_eager,
            "exact": self.exact,
            "exact_in": self.exact_in,
        }


def examine(
    zoo: Path, name: str, kinds: list[str], dtype: str, backend: str = "loafc", against: str | None = None
) -> dict[str, dict[str, Any]]:
    """Runs one model in a process of its own; the finding for each kind."""
    if not kinds:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "loafc.check.model_run", str(zoo), name, str(result)]
        command += ["--dtype", dtype, "--backend", backend, *(f"--kind={k}" for k in kinds)]
        command += ["--against", against] if against else []
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        try:
            done = subprocess.run(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=SECONDS
            )
            problem = _problem(done)
        except subprocess.TimeoutExpired:
            problem = f"it took longer than {SECONDS} seconds"
        found = json.loads(result.read_text()) if result.exists() else {}
    return {kind: found.get(kind) or {"status": "crash", "detail": problem} for kind in kinds}


def _problem(done: subprocess.CompletedProcess[bytes]) -> str:
    how = f"exit status {done.returncode}"
    if done.returncode < 0:
        how = f"ended by {signal.Signals(-done.returncode).name}"
    last = done.stderr.decode(errors="replace").strip().splitlines()[-3:]
    return f"{how}: {' / '.join(last)}"


def rows_of(zoo: Path, name: str, suite: str, kinds: list[str], dtype: str) -> Iterator[Row]:
    """The findings about one model."""

    def ended(findings: dict[str, dict[str, Any]], *statuses: str) -> list[str]:
        return [kind for kind, finding in findings.items() if finding["status"] in statuses]

    rows = {kind: Row(name, suite, kind, found) for kind, found in examine(zoo, name, kinds, dtype).items()}
    open_kinds = [kind for kind, row in rows.items() if row.finding["status"] == "rounding"]
    for better in _BETTER[dtype]:
        for kind, found in examine(zoo, name, open_kinds, better).items():
            rows[kind].exact, rows[kind].exact_in = found, better
        open_kinds = [kind for kind in open_kinds if rows[kind].exact["status"] == "eager fails"]
    wrong = [kind for kind, row in rows.items() if row.status in ("different", "error")]
    others = examine(zoo, name, wrong, dtype, "aot_eager")
    beside = examine(zoo, name, ended(others, "different", "rounding"), dtype, "loafc", "aot_eager")
    for kind, row in rows.items():
        row.aot_eager, row.beside_aot_eager = others.get(kind), beside.get(kind)
        yield row


def main(args: list[str]) -> int:
    """Runs the check; returns the exit status."""
    parser = argparse.ArgumentParser(prog="loafc.check models", description=__doc__.split("\n")[0])
    parser.add_argument("--zoo", type=Path, default=DEFAULT_ZOO, help=f"the file of models ({DEFAULT_ZOO})")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this model; may be given again")
    parser.add_argument("--suite", help="only the models of this suite")
    parser.add_argument("--inference", action="store_true", help="only inference")
    parser.add_argument("--training", action="store_true", help="only training")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="convert the models to this type (fp32)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all findings to this file")
    options = parser.parse_args(args)
    if not options.zoo.is_file():
        parser.error(f"there is no file {options.zoo}; name the models' file with --zoo")
    zoo = load_zoo(options.zoo)
    unknown = [n for n in options.only or [] if n not in zoo]
    if unknown:
        parser.error(f"{options.zoo} has no model {', '.join(unknown)}")
    names = [n for n in options.only or zoo if options.suite in (None, zoo[n][0])]
    if not names:
        parser.error(f"{options.zoo} has no suite {options.suite}")
    asked = [k for k in KINDS if getattr(options, k)]

    rows: list[Row] = []
    for name in names:
        for row in rows_of(options.zoo, name, zoo[name][0], asked or list(KINDS), options.dtype):
            rows.append(row)
            print(row.text(), flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps([r.to_json() for r in rows], indent=1))
    return summarise(rows)


def summarise(rows: list[Row]) -> int:
    """Prints how many ended how; returns the exit status."""
    counts = Counter(row.status for row in rows)
    models = {row.model for row in rows}
    failed = {row.model for row in rows if row.status in FAILURES}
    compared = {row.model for row in rows if row.status in ("same", "rounding", "as aot_eager")} - failed
    parts = ", ".join(f"{n} {status}" for status, n in counts.items())
    print(f"\n{len(compared)} of {len(models)} models give eager mode's values without fallback: {parts}")
    for name in sorted(failed):
        print(f"FAILED: {name}", file=sys.stderr)
    if not compared:
        print("FAILED: no model was compared", file=sys.stderr)
    return 1 if failed or not compared else 0
