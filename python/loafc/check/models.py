"""``python -m loafc.check models``: the models of a zoo, compiled, give what eager mode gives, without fallback.

Each model runs in a process of its own, so that a crash is a finding. What differs is run again through
``aot_eager``, which traces in the same way but computes with eager mode's operators: a difference that it shares isn't
the compiler's and is told as such. It runs in float64 as well: where that is the same, what differed is rounding, such
as a value beside zero whose rectifier opens in one program only.
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
SECONDS = 900

# What ends the check with status 1.
FAILURES = ("different", "fallback", "error", "crash")

# A float64 run is the same when its errors are this part of what is allowed at most: those of float32 are far larger.
_EXACT = 1e-3

# aot_eager shares a difference that is at least this part of loafc's.
_SHARED = 0.5


@dataclass
class Row:
    """One part of one model: how it ended, and everything that was found."""

    model: str
    suite: str
    kind: str
    finding: dict[str, Any]
    aot_eager: dict[str, Any] | None = field(default=None)
    float64: dict[str, Any] | None = field(default=None)

    @property
    def status(self) -> str:
        """``same``, ``as aot_eager``, ``same in fp64``, ``not there``, ``eager fails`` or one of the failures."""
        status = self.finding["status"]
        if status in ("different", "error") and self._is_shared():
            return "as aot_eager"
        return "same in fp64" if status == "different" and self._is_rounding() else status

    def _is_rounding(self) -> bool:
        return self.float64 is not None and self.float64["status"] == "same" and self.float64["severity"] < _EXACT

    def _is_shared(self) -> bool:
        other = self.aot_eager
        if other is None or other["status"] != self.finding["status"]:
            return False
        if other["status"] == "error":
            return other["detail"].split(":")[0] == self.finding["detail"].split(":")[0]
        return other["severity"] >= _SHARED * self.finding["severity"]

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
        if self.aot_eager is not None:
            line += f"\n    aot_eager: {self.aot_eager['status']}: {self.aot_eager['detail']}"
        if self.float64 is not None:
            line += (
                f"\n    in float64: {self.float64['status']}, worst {self.float64.get('severity', 0.0):.3g} of allowed"
            )
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
            "float64": self.float64,
        }


def examine(zoo: Path, name: str, kinds: list[str], dtype: str, backend: str) -> dict[str, dict[str, Any]]:
    """Runs one model in a process of its own; the finding for each kind."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "loafc.check.model_run", str(zoo), name, str(result)]
        command += ["--dtype", dtype, "--backend", backend, *(f"--kind={k}" for k in kinds)]
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
    findings = examine(zoo, name, kinds, dtype, "loafc")
    again = [k for k in kinds if findings[k]["status"] in ("different", "error")]
    others = examine(zoo, name, again, dtype, "aot_eager") if again else {}
    different = [k for k in again if findings[k]["status"] == "different" and dtype == "fp32"]
    exact = examine(zoo, name, different, "fp64", "loafc") if different else {}
    for kind in kinds:
        yield Row(name, suite, kind, findings[kind], others.get(kind), exact.get(kind))


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
    compared = {row.model for row in rows if row.status in ("same", "as aot_eager")} - failed
    parts = ", ".join(f"{n} {status}" for status, n in counts.items())
    print(f"\n{len(compared)} of {len(models)} models give eager mode's values without fallback: {parts}")
    for name in sorted(failed):
        print(f"FAILED: {name}", file=sys.stderr)
    if not compared:
        print("FAILED: no model was compared", file=sys.stderr)
    return 1 if failed or not compared else 0
