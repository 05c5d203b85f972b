"""Turns an FX graph of ATen calls into the text of a tensor program (``.loaf``).

The text is the one form in which all front ends hand over a program, so what a user reports can be replayed
with the command line alone. Everything that the text can't say (Python objects as arguments, higher-order
operators, float-valued size expressions) becomes a call of a numbered Python operator over plain tensors and
sizes, and is kept beside the text.
"""

from __future__ import annotations

import json
import math
import operator
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node

from ._torch_compat import symbol_hint
from .errors import ConvertError
from .sizes import linear_in, size_text

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
    torch.complex64: "c64",
    torch.complex128: "c128",
}

MEMORY_FORMAT_NAMES = {
    torch.contiguous_format: "contiguous_format",
    torch.preserve_format: "preserve_format",
    torch.channels_last: "channels_last",
    torch.channels_last_3d: "channels_last_3d",
}

# Assertions about sizes. What they assert about sizes of inputs is guarded by Dynamo before the call; sizes that
# depend on data are refused below.
_SIZE_ASSERTIONS = frozenset(
    {
        "aten._assert_scalar.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)

# They replace a tensor's storage, which a program over fixed memory can't express.
_STORAGE_OPERATORS = frozenset(
    {
        "aten.set_.source_Tensor",
        "aten.set_.source_Storage",
        "aten.set_.source_Storage_storage_offset",
        "aten.set_.default",
        "aten.resize_.default",
        "inductor.resize_storage_bytes_.default",
        "fsdp.copy_.default",
    }
)

_TORCH_FOLDER = os.path.dirname(torch.__file__)
_FRAME = re.compile(r'File "([^"\n]*)", line (\d+)')


@dataclass(frozen=True)
class DerivedSize:
    """A size symbol that no argument gives alone: ``(property of an argument - offset) // factor``."""

    position: int
    kind: str  # "size", "stride" or "value"
    dim: int
    factor: int
    offset: int


@dataclass
class Converted:
    """A tensor program with what its text leaves out.

    The program takes, in order: the arguments at ``size_positions``, one integer for each of ``derived``, the
    arguments at ``tensor_positions``, and the ``constants``.
    """

    text: str
    size_positions: list[int]
    derived: list[DerivedSize]
    tensor_positions: list[int]
    constants: list[torch.Tensor]
    # Operators by their name in the text: overloads, and the numbered Python operators.
    operators: dict[str, Callable[..., Any]]
    # For each value that the graph returns, the program's output of this position, or `Literal`.
    outputs: list[int | Literal]
    # Positions of arguments with a lazy conjugation or negation, which must be made real first.
    lazy_positions: list[int] = field(default_factory=list)

    @property
    def returns_program_outputs(self) -> bool:
        """Whether the program's outputs are the graph's, one by one."""
        return all(k == out for k, out in enumerate(self.outputs))


@dataclass(frozen=True)
class Literal:
    """An output that is a plain Python value."""

    value: Any


@dataclass(frozen=True)
class _SymbolicValue:
    """A float or truth value computed from sizes: no tensor program has such values."""

    expr: Any
    cast: Callable[[Any], Any]


class _PythonObject:
    """A value that is no tensor and no size: a submodule of a higher-order operator and the like."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Unsayable(Exception):
    """An argument has no text form; the call becomes a Python operator."""


def convert(gm: GraphModule, name: str) -> Converted:
    """Converts a functional graph whose nodes carry fake tensors in ``meta["val"]``.

    Raises ConvertError, naming the node, for what no tensor program can express.
    """
    return _Converter(gm, name).run()


class _Converter:
    def __init__(self, gm: GraphModule, name: str) -> None:
        self.gm = gm
        self.name = name
        self.lines: list[str] = []
        # Text of each value: `%name`, a size expression, or a list of them.
        self.names: dict[Node, Any] = {}
        self.shape_env: Any = None
        self.symbols: dict[sympy.Symbol, None] = {}
        self.expr_texts: dict[Any, str] = {}
        self.type_suffixes: dict[tuple[torch.dtype, torch.device], str] = {}
        self.locations: dict[str, str] = {}
        self.operators: dict[str, Callable[..., Any]] = {}
        self.target_names: dict[Any, str] = {}
        self.constants: list[torch.Tensor] = []
        self.constant_inputs: list[str] = []
        self.constant_names: dict[str, str] = {}
        self.formatters: dict[type, Callable[[Any], str]] = {
            Node: self._node_text,
            int: str,
            bool: lambda v: "true" if v else "false",
            float: _float_text,
            str: _string_text,
            type(None): lambda _: "none",
            list: self._list_text,
            tuple: self._list_text,
            torch.fx.immutable_collections.immutable_list: self._list_text,
            torch.Size: self._list_text,
            torch.dtype: _dtype_text,
            torch.device: _device_text,
            torch.memory_format: lambda v: _string_text(MEMORY_FORMAT_NAMES[v]),
            torch.layout: _layout_text,
            torch.SymInt: self._size,
        }

    def run(self) -> Converted:
        graph = self.gm.graph
        nodes = list(graph.nodes)
        placeholders = [n for n in nodes if n.op == "placeholder"]
        for node in placeholders:
            self._placeholder(node)
        returned: Any = ()
        for node in nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "get_attr":
                self._attribute(node)
            elif node.op == "output":
                returned = node.args[0]
            elif node.op != "placeholder":
                raise ConvertError(f"`{node.name}` is a {node.op} node; only calls of functions can be compiled")
        outputs, output_texts = self._outputs(returned)
        return self._finish(placeholders, outputs, output_texts)

    # -- inputs ----------------------------------------------------------------------------------------------

    def _placeholder(self, node: Node) -> None:
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor):
            self.names[node] = f"%{node.name}"
        elif isinstance(val, torch.SymInt):
            self.names[node] = self._size(val)
        elif isinstance(val, bool) or val is None:
            self.names[node] = _PythonObject(val)
        elif isinstance(val, int):
            self.names[node] = str(val)
        elif isinstance(val, (torch.SymFloat, torch.SymBool)):
            # Only an input that is used matters; that one fails where it is used.
            self.names[node] = _symbolic(val)
        else:
            self.names[node] = _PythonObject(val)

    def _attribute(self, node: Node) -> None:
        target = str(node.target)
        value: Any = self.gm
        for part in target.split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            self.names[node] = _PythonObject(value)
            return
        if target not in self.constant_names:
            text = f"%{node.name}"
            self.constant_names[target] = text
            self.constants.append(value)
            self.constant_inputs.append(f"{text}: {self._type(value, node)}")
        self.names[node] = self.constant_names[target]

    # -- calls -----------------------------------------------------------------------------------------------

    def _call(self, node: Node) -> None:
        target = node.target
        if target is operator.getitem:
            self._getitem(node)
            return
        val = node.meta.get("val")
        if isinstance(val, torch.SymInt):
            self.names[node] = self._size(val)
            return
        if isinstance(val, (torch.SymFloat, torch.SymBool)):
            self.names[node] = _symbolic(val)
            return
        op = self._target_name(target)
        if op in _SIZE_ASSERTIONS:
            return
        if op in _STORAGE_OPERATORS:
            raise ConvertError(f"`{node.name}`: {op} replaces a tensor's storage")
        if isinstance(val, (int, float, bool)):
            self.names[node] = self._literal(val)
            return
        results = self._results(node, val)
        try:
            if not isinstance(target, torch._ops.OpOverload):
                raise _Unsayable
            arguments = self._arguments(node.args, node.kwargs)
            self.operators.setdefault(op, target)
        except _Unsayable:
            op, arguments = self._python_operator(node, op)
        left = f"{results} = " if results else ""
        self.lines.append(f"  {left}{op}({arguments}){self._location(node)}")

    def _target_name(self, target: Any) -> str:
        name = self.target_names.get(target)
        if name is None:
            name = str(target) if isinstance(target, torch._ops.OpOverload) else _plain_name(target)
            self.target_names[target] = name
        return name

    def _literal(self, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int):
            return _SymbolicValue(value, type(value))
        return str(value)

    def _results(self, node: Node, val: Any) -> str:
        if isinstance(val, torch.Tensor):
            self.names[node] = f"%{node.name}"
            return f"%{node.name}: {self._type(val, node)}"
        if val is None:
            self.names[node] = _PythonObject(None)
            return ""
        if not isinstance(val, (list, tuple)):
            raise ConvertError(f"`{node.name}`: a result of type {type(val).__name__} is neither tensor nor size")
        return self._list_results(node, val)

    def _list_results(self, node: Node, val: Sequence[Any]) -> str:
        wanted: dict[int, str] = {}
        for user in node.users:
            if user.target is operator.getitem and isinstance(user.args[1], int):
                wanted.setdefault(user.args[1] % len(val), user.name)
            else:
                for k in range(len(val)):
                    wanted.setdefault(k, f"{node.name}__{k}")
        texts, names = [], []
        for k, item in enumerate(val):
            if item is None or k not in wanted:
                texts.append("_")
                names.append(_PythonObject(None))
            elif isinstance(item, torch.Tensor):
                texts.append(f"%{wanted[k]}: {self._type(item, node)}")
                names.append(f"%{wanted[k]}")
            elif isinstance(item, torch.SymInt):
                # The operator still makes it; what it is follows from the sizes already.
                texts.append("_")
                names.append(self._size(item))
            elif isinstance(item, int):
                texts.append("_")
                names.append(str(item))
            else:
                raise ConvertError(
                    f"`{node.name}`: result {k} of type {type(item).__name__} is neither tensor nor size"
                )
        self.names[node] = names
        return ", ".join(texts)

    def _getitem(self, node: Node) -> None:
        source, index = node.args
        items = self.names.get(source)
        if not isinstance(items, list):
            raise ConvertError(f"`{node.name}` takes an item of `{source}`, which is no list")
        self.names[node] = items[index]

    # -- arguments -------------------------------------------------------------------------------------------

    def _arguments(self, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
        texts = [self._text(a) for a in args]
        for key, value in kwargs.items():
            if key == "generator" and value is None:
                continue
            texts.append(f"{key}={self._text(value)}")
        return ", ".join(texts)

    def _text(self, value: Any) -> str:
        formatter = self.formatters.get(type(value))
        if formatter is None:
            raise _Unsayable
        return formatter(value)

    def _node_text(self, node: Node) -> str:
        text = self.names.get(node)
        if isinstance(text, str):
            return text
        if isinstance(text, list):
            return "[" + ", ".join(self._item_text(t) for t in text) + "]"
        if isinstance(text, _PythonObject) and text.value is None:
            return "none"
        raise _Unsayable

    def _item_text(self, item: Any) -> str:
        if isinstance(item, str):
            return item
        if isinstance(item, _PythonObject) and item.value is None:
            return "none"
        raise _Unsayable

    def _list_text(self, values: Sequence[Any]) -> str:
        return "[" + ", ".join([self._text(v) for v in values]) + "]"

    def _python_operator(self, node: Node, op: str) -> tuple[str, str]:
        """Makes the call a Python operator over tensors and sizes; returns its name and its arguments."""
        flat: list[str] = []
        positions: dict[str, int] = {}

        def leaf(text: str) -> _Leaf:
            if text not in positions:
                positions[text] = len(flat)
                flat.append(text)
            return _Leaf(positions[text])

        def template(value: Any) -> Any:
            if isinstance(value, Node):
                return from_name(self.names.get(value), value)
            if isinstance(value, torch.SymInt):
                return leaf(self._size(value))
            if isinstance(value, (torch.SymFloat, torch.SymBool)):
                return from_name(_symbolic(value), node)
            if isinstance(value, (list, tuple)):
                return _rebuild_sequence(value, [template(v) for v in value])
            if isinstance(value, dict):
                return {k: template(v) for k, v in value.items()}
            if isinstance(value, slice):
                return slice(template(value.start), template(value.stop), template(value.step))
            return value

        def from_name(name: Any, source: Node) -> Any:
            if isinstance(name, str):
                return leaf(name) if not _is_integer(name) else int(name)
            if isinstance(name, _PythonObject):
                return name.value
            if isinstance(name, list):
                return [from_name(n, source) for n in name]
            if isinstance(name, _SymbolicValue):
                free = sorted(getattr(name.expr, "free_symbols", ()), key=str)
                return _Computed(name, {s: leaf(self._expr_text(s)) for s in free})
            raise ConvertError(f"`{node.name}`: its argument `{source}` has no value")

        args = template(tuple(node.args))
        kwargs = template(dict(node.kwargs))
        target = node.target

        def call(*values: Any) -> Any:
            result = target(*_fill(args, values), **_fill(kwargs, values))
            return _flatten(result)

        call.__name__ = op
        short = re.sub(r"\W+", "_", op.rsplit(".", 2)[-2] if op.count(".") >= 2 else op)
        name = f"python.{short}.call_{len(self.operators)}"
        self.operators[name] = call
        return name, ", ".join(flat)

    # -- outputs ---------------------------------------------------------------------------------------------

    def _outputs(self, returned: Any) -> tuple[list[int | Literal], list[str]]:
        values = returned if isinstance(returned, (list, tuple)) else (returned,)
        outputs: list[int | Literal] = []
        texts: list[str] = []
        for value in values:
            name = self.names.get(value) if isinstance(value, Node) else value
            if isinstance(name, _PythonObject):
                name = name.value
            if isinstance(name, torch.SymInt):
                name = self._size(name)
            if isinstance(name, str):
                outputs.append(len(texts))
                texts.append(name)
            elif name is None:
                outputs.append(len(texts))
                texts.append("none")
            elif isinstance(name, _SymbolicValue) and not getattr(name.expr, "free_symbols", ()):
                outputs.append(Literal(name.cast(name.expr)))
            elif isinstance(name, (bool, int, float)):
                outputs.append(Literal(name))
            else:
                raise ConvertError(f"the graph returns `{value}`, which is neither tensor nor size")
        return outputs, texts

    # -- types and sizes -------------------------------------------------------------------------------------

    def _type(self, val: torch.Tensor, node: Node) -> str:
        if val.layout is not torch.strided:
            raise ConvertError(f"`{node.name}` has the layout {val.layout}; only strided tensors can be compiled")
        key = (val.dtype, val.device)
        head_tail = self.type_suffixes.get(key)
        if head_tail is None:
            dtype = DTYPE_NAMES.get(val.dtype)
            if dtype is None:
                raise ConvertError(f"`{node.name}` has the element type {val.dtype}, which loafc doesn't know")
            try:
                device = _device_text(val.device)
            except _Unsayable:
                raise ConvertError(f"`{node.name}` lives on {val.device}, which loafc doesn't know") from None
            head_tail = self.type_suffixes[key] = f"{dtype}\0{'' if device == 'cpu' else f' device {device}'}"
        dtype, tail = head_tail.split("\0")
        shape, strides = val.shape, val.stride()
        text = f"{dtype}[{', '.join([self._size(s) for s in shape])}]"
        if not _is_contiguous(shape, strides):
            text += f" strides [{', '.join([self._size(s) for s in strides])}]"
        return text + tail

    def _size(self, size: Any) -> str:
        if type(size) is int:
            return str(size)
        node = size.node
        if self.shape_env is None:
            self.shape_env = getattr(node, "shape_env", None)
        known = node.maybe_as_int()
        return str(known) if known is not None else self._expr_text(node.expr)

    def _expr_text(self, expr: Any) -> str:
        text = self.expr_texts.get(expr)
        if text is None:
            for symbol in expr.free_symbols:
                self.symbols.setdefault(symbol)
            text = self.expr_texts[expr] = size_text(expr)
        return text

    def _location(self, node: Node) -> str:
        trace = node.meta.get("stack_trace")
        if not trace:
            return ""
        text = self.locations.get(trace)
        if text is None:
            text = self.locations[trace] = _innermost_user_frame(trace)
        return text

    # -- the whole -------------------------------------------------------------------------------------------

    def _finish(self, placeholders: list[Node], outputs: list[int | Literal], output_texts: list[str]) -> Converted:
        tensor_inputs: list[str] = []
        tensor_positions: list[int] = []
        lazy: list[int] = []
        for k, node in enumerate(placeholders):
            val = node.meta.get("val")
            if isinstance(val, torch.Tensor) and (node.users or self.names[node] in output_texts):
                if val.is_conj() or val.is_neg():
                    lazy.append(k)
                tensor_inputs.append(f"%{node.name}: {self._type(val, node)}")
                tensor_positions.append(k)

        size_inputs, size_positions, derived = self._bind_symbols(placeholders, tensor_positions)
        declared = [
            f"size {s} = {hint}"
            for s in self.symbols
            if s.name not in size_inputs and (hint := self._hint(s)) is not None
        ]
        size_texts = [f"{name}: size" + ("" if hint is None else f" = {hint}") for name, hint in size_inputs.items()]
        signature = ", ".join(size_texts + tensor_inputs + self.constant_inputs)
        text = "\n".join(
            [
                *declared,
                f"graph @{self.name}({signature}) {{",
                *self.lines,
                f"  return {', '.join(output_texts)}",
                "}",
                "",
            ]
        )
        return Converted(
            text=text,
            size_positions=size_positions,
            derived=derived,
            tensor_positions=tensor_positions,
            constants=self.constants,
            operators=self.operators,
            outputs=outputs,
            lazy_positions=lazy,
        )

    def _hint(self, symbol: sympy.Symbol) -> int | None:
        return symbol_hint(self.shape_env, symbol)

    def _bind_symbols(
        self, placeholders: list[Node], tensor_positions: list[int]
    ) -> tuple[dict[str, int | None], list[int], list[DerivedSize]]:
        """Finds for each symbol where its value comes from at a call."""
        bound: set[sympy.Symbol] = set()
        inputs: dict[str, int | None] = {}
        positions: list[int] = []
        for k, node in enumerate(placeholders):
            val = node.meta.get("val")
            expr = val.node.expr if isinstance(val, torch.SymInt) else None
            if isinstance(expr, sympy.Symbol) and expr in self.symbols and expr not in bound:
                bound.add(expr)
                inputs[expr.name] = self._hint(expr)
                positions.append(k)
        for k in tensor_positions:
            for size in placeholders[k].meta["val"].shape:
                expr = _expr_of(size)
                if isinstance(expr, sympy.Symbol):
                    bound.add(expr)

        derived: list[DerivedSize] = []
        missing = [s for s in self.symbols if s not in bound]
        if missing:
            sources = list(self._size_sources(placeholders))
            for symbol in missing:
                found = next((d for s in sources if (d := _derive(s, symbol))), None)
                if found is None:
                    raise ConvertError(f"no argument gives the value of size `{symbol}`")
                derived.append(found)
                inputs[symbol.name] = self._hint(symbol)
        return inputs, positions, derived

    def _size_sources(self, placeholders: list[Node]) -> Any:
        for k, node in enumerate(placeholders):
            val = node.meta.get("val")
            if isinstance(val, torch.SymInt):
                yield k, "value", 0, val.node.expr
            elif isinstance(val, torch.Tensor):
                for d, size in enumerate(val.shape):
                    yield k, "size", d, _expr_of(size)
                for d, stride in enumerate(val.stride()):
                    yield k, "stride", d, _expr_of(stride)


@dataclass(frozen=True)
class _Leaf:
    """The tensor or size of this position among a Python operator's arguments."""

    position: int


@dataclass(frozen=True)
class _Computed:
    """A float or truth value that is computed from sizes at each call."""

    value: _SymbolicValue
    symbols: dict[sympy.Symbol, _Leaf]

    def at(self, values: Sequence[Any]) -> Any:
        expr = self.value.expr
        if self.symbols:
            expr = expr.xreplace({s: sympy.Integer(values[p.position]) for s, p in self.symbols.items()})
        return self.value.cast(expr)


def _fill(template: Any, values: Sequence[Any]) -> Any:
    if isinstance(template, _Leaf):
        return values[template.position]
    if isinstance(template, _Computed):
        return template.at(values)
    if isinstance(template, (list, tuple)):
        return _rebuild_sequence(template, [_fill(t, values) for t in template])
    if isinstance(template, dict):
        return {k: _fill(v, values) for k, v in template.items()}
    if isinstance(template, slice):
        return slice(_fill(template.start, values), _fill(template.stop, values), _fill(template.step, values))
    return template


def _rebuild_sequence(like: Sequence[Any], items: list[Any]) -> Any:
    if hasattr(like, "_fields"):
        return type(like)(*items)
    return tuple(items) if isinstance(like, tuple) else items


def _flatten(result: Any) -> list[Any]:
    if result is None:
        return []
    if not isinstance(result, (list, tuple)):
        return [result]
    return list(result)


def _symbolic(val: Any) -> _SymbolicValue:
    return _SymbolicValue(val.node.expr, float if isinstance(val, torch.SymFloat) else bool)


def _expr_of(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _derive(source: tuple[int, str, int, Any], symbol: sympy.Symbol) -> DerivedSize | None:
    position, kind, dim, expr = source
    line = linear_in(expr, symbol)
    return None if line is None else DerivedSize(position, kind, dim, *line)


def _is_contiguous(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if type(stride) is not int or stride != expected:
            return False
        if type(size) is not int:
            # The outermost size doesn't enter any stride; further in, strides would be symbolic.
            return len(shape) == 1 or size is shape[0]
        expected *= size or 1
    return True


def _is_integer(text: str) -> bool:
    return text.lstrip("-").isdigit()


def _float_text(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)


def _string_text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _dtype_text(value: torch.dtype) -> str:
    name = DTYPE_NAMES.get(value)
    if name is None:
        raise _Unsayable
    return name


def _device_text(value: torch.device) -> str:
    if value.type == "cpu":
        return "cpu"
    if value.type == "cuda":
        return f"cuda:{value.index or 0}"
    raise _Unsayable


def _layout_text(value: torch.layout) -> str:
    if value is not torch.strided:
        raise _Unsayable
    return '"strided"'


def _plain_name(target: Any) -> str:
    name = getattr(target, "_name", None) or getattr(target, "__name__", type(target).__name__)
    return str(name).replace("::", ".")


def _innermost_user_frame(trace: str) -> str:
    frames = _FRAME.findall(trace)
    if not frames:
        return ""
    user = next((f for f in reversed(frames) if not f[0].startswith(_TORCH_FOLDER)), frames[-1])
    return f" loc({_string_text(user[0])}:{user[1]})"
