"""Writes what PyTorch makes of each call in samples.txt to pytorch.txt: dtype, shape, strides, values.

Run with PyTorch installed: `python generate.py`. The Rust tests compare loafc's types and interpreter with it.
"""

import re
from pathlib import Path

import torch
import torch._inductor.inductor_prims  # noqa: F401  registers prims._low_memory_max_pool_*

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8,
    "b8": torch.bool,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def tensor(name: str) -> torch.Tensor:
    """The tensor that a name in samples.txt stands for; `sample_tensor` in the Rust tests makes the same."""
    kind, extents, letters = (name.split("_") + [""])[:3]
    shape = [] if extents == "s" else [int(n) for n in extents.split("x")]
    count = torch.Size(shape).numel()
    seed = sum(ord(c) for c in letters)
    numbers = [(k * 37 + seed * 7 + 11) % 101 - 50 for k in range(count)]
    if "n" in letters:
        numbers = [(k + seed) % 2 for k in range(count)]
    elif kind == "b8":
        numbers = [n % 2 for n in numbers]
    elif kind in ("f64", "f32", "f16", "bf16"):
        numbers = [n / 16 for n in numbers]
    else:
        numbers = [n % 7 if kind == "u8" else n % 7 - 3 for n in numbers]
        if "n" not in letters and "p" not in letters and kind == "i64" and extents in ("2", "2x1", "3"):
            numbers = [k % 3 for k in range(count)]
    if "p" in letters:
        step = 0.25 if kind in ("f64", "f32", "f16", "bf16") else 1
        numbers = [abs(n) + step for n in numbers]
    if "u" in letters:
        numbers = [n / 4 for n in numbers]
    made = torch.tensor(numbers, dtype=DTYPES[kind]).reshape(shape)
    if "t" in letters:
        order = list(reversed(range(made.dim())))
        made = made.permute(order).contiguous().permute(order)
    if "c" in letters:
        made = made.contiguous(memory_format=torch.channels_last)
    return made


def evaluate(call: str) -> object:
    """The results of a call written in `.loaf` text."""
    operator, arguments = re.fullmatch(r"([\w.]+)\((.*)\)", call).groups()
    space, *path = operator.split(".")
    function = getattr(torch.ops, space)
    for part in path:
        function = getattr(function, part)
    names = {name: tensor(name) for name in re.findall(r"%(\w+)", arguments)}
    scope = {**DTYPES, **names, "true": True, "false": False, "none": None, "inf": float("inf")}
    scope |= {"cpu": torch.device("cpu"), "collect": lambda *a, **k: (a, k)}
    args, kwargs = eval(f"collect({arguments.replace('%', '')})", scope)  # noqa: S307
    if kwargs.get("memory_format") == "contiguous_format":
        kwargs["memory_format"] = torch.contiguous_format
    return function(*args, **kwargs)


def describe(result: torch.Tensor, with_values: bool) -> str:
    """One line: type, strides, and values in logical order."""
    line = f"  {NAMES[result.dtype]}{list(result.shape)} strides {list(result.stride())}"
    if not with_values:
        return line + " undefined"
    wide = result.to(torch.float64) if result.dtype.is_floating_point else result.to(torch.int64)
    values = [repr(v) for v in wide.reshape(-1).tolist()]
    return " ".join([line, "=", *values])


def main() -> None:
    """Writes pytorch.txt."""
    folder = Path(__file__).parent
    lines = [f"# Made by generate.py with PyTorch {torch.__version__.split('+')[0]}."]
    for sample in (folder / "samples.txt").read_text().splitlines():
        if not sample or sample[0] in "#!":
            continue
        call = sample.removeprefix("~")
        results = evaluate(call)
        results = results if isinstance(results, (tuple, list)) else [results]
        lines.append(call)
        lines += ["  none" if r is None else describe(r, sample[0] != "~") for r in results]
    (folder / "pytorch.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
