"""The text of constants in a tensor program, and the objects that such texts stand for."""

from __future__ import annotations

import json
import math

import torch

DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8e4m3fn",
    torch.float8_e5m2: "f8e5m2",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint64: "u64",
    torch.uint32: "u32",
    torch.uint16: "u16",
    torch.uint8: "u8",
    torch.bool: "b8",
    torch.complex32: "c32",
    torch.complex64: "c64",
    torch.complex128: "c128",
}

DTYPES: dict[str, torch.dtype] = {name: dtype for dtype, name in DTYPE_NAMES.items()}

MEMORY_FORMAT_NAMES = {
    torch.contiguous_format: "contiguous_format",
    torch.preserve_format: "preserve_format",
    torch.channels_last: "channels_last",
    torch.channels_last_3d: "channels_last_3d",
}

MEMORY_FORMATS: dict[str, torch.memory_format] = {name: value for value, name in MEMORY_FORMAT_NAMES.items()}

LAYOUTS: dict[str, torch.layout] = {"strided": torch.strided}


class Unsayable(Exception):
    """An argument has no text form; the call becomes a Python operator."""


def float_text(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)


def string_text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def dtype_text(value: torch.dtype) -> str:
    name = DTYPE_NAMES.get(value)
    if name is None:
        raise Unsayable
    return name


def device_text(value: torch.device) -> str:
    if value.type == "cpu":
        return "cpu"
    if value.type == "cuda":
        return f"cuda:{value.index or 0}"
    raise Unsayable


def layout_text(value: torch.layout) -> str:
    if value is not torch.strided:
        raise Unsayable
    return '"strided"'


def memory_format_text(value: torch.memory_format) -> str:
    return string_text(MEMORY_FORMAT_NAMES[value])
