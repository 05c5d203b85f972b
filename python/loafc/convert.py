"""Turns an FX graph of ATen calls into the text of a tensor program (``.loaf``).

The text is the one form in which all front ends hand over a program, so what a user reports can be replayed
with the command line alone. Everything that the text can't say (Python objects as arguments, higher-order
operators, floats computed from sizes) becomes a call of a numbered Python operator over plain tensors and
sizes, and is kept beside the text.
"""

from __future__ import annotations

import json
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from . import python_operators
from ._torch_compat import (
    equal_unbacked_symbols,
    guarded_to_be,
    is_ragged_size,
    rng_call_result,
    symbol_hint,
    with_effects,
)
from .errors import ConvertError
from .literals import (
    DTYPE_NAMES,
    Unsayable,
    device_text,
    dtype_text,
    float_text,
    layout_text,
    memory_format_text,
    string_text,
)
from .positions import with_positions_from_the_start
from .python_operators import Computed, Leaf, SymbolicValue, rebuild_sequence
from .size_functions import ComputedSize, named_where_unwritable, size_function
from .sizes import size_text
from .storages import as_strided_in_root, first_element, last_element, root_of
from .symbols import DerivedSize, SymbolSources, UnknownSize, derive, find_sources

# Assertions about sizes. What they assert about sizes of inputs is guarded by Dynamo before the call; sizes that
# depend on data are refused below.
_SIZE_ASSERTIONS = frozenset(
    {
        "aten._assert_scalar.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)

# Views whose extent the operator takes on trust while tracing; eager mode refuses those beyond the storage.
_AS_STRIDED = frozenset({"aten.as_strided.default", "aten.as_strided_copy.default", "aten.as_strided_scatter.default"})

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

_WAIT = "_c10d_functional.wait_tensor.default"

_TORCH_FOLDER = os.path.dirname(torch.__file__)
_LOCATION = re.compile(r' loc\(("(?:[^"\\]|\\.)*"):(\d+)\)$')
_FRAME = re.compile(r'File "([^"\n]*)", line (\d+)')


@dataclass
class Converted:
    """A tensor program with what its text leaves out.

    The program takes, in order: the arguments at ``size_positions``, one integer for each of ``derived`` and of
    ``computed``, the arguments at ``tensor_positions``, and the ``constants``.
    """

    text: str
    size_positions: list[int]
    derived: list[DerivedSize]
    computed: list[ComputedSize]
    tensor_positions: list[int]
    # How many arguments the graph takes.
    argument_count: int
    constants: list[torch.Tensor]
    # Operators by their name in the text: overloads, and the numbered Python operators.
    operators: dict[str, Callable[..., Any]]
    # For each value that the graph returns. A value that is returned twice is one output of the program.
    outputs: list[Output]
    # Positions of arguments with a lazy conjugation or negation, which must be made real first.
    lazy_positions: list[int] = field(default_factory=list)
    # Positions of gradients of outputs: what autograd passes there is under no guard.
    unguarded_positions: set[int] = field(default_factory=set)
    # Where arguments start in their storage, for those on which the program depends in that. No guard keeps it.
    storage_offsets: dict[int, int] = field(default_factory=dict)

    @property
    def returns_program_outputs(self) -> bool:
        """Whether the program's outputs are the graph's, one by one."""
        return all(k == out for k, out in enumerate(self.outputs))


@dataclass(frozen=True)
class Literal:
    """An output that is a plain Python value."""

    value: Any


@dataclass(frozen=True)
class Passed:
    """An output that is the argument of this position, which the program can't hold."""

    position: int


# Where a value that the graph returns comes from: the program's output of this position, or elsewhere.
Output = int | Literal | Passed


class _PythonObject:
    """A value that is no tensor and no size: a submodule of a higher-order operator and the like."""

    def __init__(self, value: Any) -> None:
        self.value = value


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
        # Texts that some call or the result names.
        self.used: set[str] = set()
        self.shape_env: Any = None
        self.symbols: dict[sympy.Symbol, None] = {}
        self.expr_texts: dict[Any, str] = {}
        self.same: dict[sympy.Symbol, sympy.Symbol] | None = None
        # What stands for the integer expressions that no program can compute.
        self.computed: dict[Any, sympy.Symbol] = {}
        self.type_suffixes: dict[tuple[torch.dtype, torch.device], str] = {}
        self.locations: dict[str, str] = {}
        self.operators: dict[str, Callable[..., Any]] = {}
        self.target_names: dict[Any, str] = {}
        # Arguments whose place in their storage was counted on.
        self.placed: set[Node] = set()
        self.constants: list[torch.Tensor] = []
        self.constant_inputs: list[str] = []
        self.constant_names: dict[str, str] = {}
        self.formatters: dict[type, Callable[[Any], str]] = {
            Node: self._node_text,
            int: str,
            bool: lambda v: "true" if v else "false",
            float: float_text,
            str: string_text,
            type(None): lambda _: "none",
            list: self._list_text,
            tuple: self._list_text,
            torch.fx.immutable_collections.immutable_list: self._list_text,
            torch.Size: self._list_text,
            torch.dtype: dtype_text,
            torch.device: device_text,
            torch.memory_format: memory_format_text,
            torch.layout: layout_text,
            torch.SymInt: self._size,
        }

    def run(self) -> Converted:
        graph = self.gm.graph
        nodes = list(graph.nodes)
        placeholders = [n for n in nodes if n.op == "placeholder"]
        for position, node in enumerate(placeholders):
            self._placeholder(node, position)
        returned: Any = ()
        node = None
        try:
            for node in nodes:
                if node.op == "call_function":
                    self._call(node)
                elif node.op == "get_attr":
                    self._attribute(node)
                elif node.op == "output":
                    returned = node.args[0]
                elif node.op != "placeholder":
                    raise ConvertError(f"`{node.name}` is a {node.op} node; only calls of functions can be compiled")
        except Exception as error:
            raise _error_at(node, error) from error
        outputs, output_texts = self._outputs(returned)
        return self._finish(placeholders, outputs, output_texts)

    # -- inputs ----------------------------------------------------------------------------------------------

    def _placeholder(self, node: Node, position: int) -> None:
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor):
            self.names[node] = f"%{node.name}"
        elif isinstance(val, torch.SymInt):
            self.names[node] = Passed(position) if is_ragged_size(val) else self._size(val)
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
        if target is with_effects:
            self._effect(node, val)
            return
        if val is None:
            val = rng_call_result(node)
        op = self._target_name(target)
        if op in _SIZE_ASSERTIONS:
            return
        if op == _WAIT and self._is_waited_for(node.args[0]):
            self.names[node] = self.names[node.args[0]]
            return
        if op in _STORAGE_OPERATORS:
            raise ConvertError(f"`{node.name}`: {op} replaces a tensor's storage")
        if isinstance(val, (int, float, bool)):
            self.names[node] = self._literal(val)
            return
        args, kwargs = with_positions_from_the_start(node)
        if op in _AS_STRIDED:
            args = self._own_memory_args(node)
        self._emit(node, self._results(node, val), target, args, kwargs)

    def _is_waited_for(self, tensor: Node) -> bool:
        """Whether a collective's result is there already: calls of collectives end when they are done.

        Only what was begun outside of this graph must be waited for, by the very tensor that was passed.
        """
        if tensor.op != "placeholder" and root_of(tensor).op == "placeholder":
            raise ConvertError(f"`{tensor.name}` is a view of an argument: only a whole one can be waited for")
        return tensor.op != "placeholder"

    def _own_memory_args(self, node: Node) -> tuple[Any, ...]:
        """The arguments of an ``as_strided`` with the offset counted from where the program's memory starts.

        ATen counts it from the start of the storage. A program's buffers start at the first element of the input
        or of the computed tensor, so that one is the tensor to view.
        """
        root, args = as_strided_in_root(node)
        # The operator of ATen that copies is called with the argument itself, in its storage.
        if node.target is torch.ops.aten.as_strided_copy.default and root.op != "call_function":
            return node.args
        if root.op == "placeholder":
            self.placed.add(root)
        offset = args[-1]
        known = offset if type(offset) is int else offset.node.maybe_as_int()
        if known is not None and known < 0:
            raise ConvertError(
                f"`{node.name}` views memory that lies {-known} elements before the first one of `{root.name}`"
            )
        if known is not None:
            _check_extent(node, root, args)
        return args if known != 0 else (*args[:-1], None)

    def _effect(self, node: Node, val: Any) -> None:
        """A call with effects, which tokens keep in order: calls of a program are in order without them."""
        _, target, *args = node.args
        if len(val) == 2 and val[1] is None:
            results = ""
            self.names[node] = [_PythonObject(None)] * 2
        else:
            results = self._list_results(node, val).partition(", ")[2]
        self._emit(node, results, target, args, node.kwargs)

    def _emit(self, node: Node, results: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        op = self._target_name(target)
        try:
            # Only results of Python operators may be their arguments, or lists of lists.
            if not isinstance(target, torch._ops.OpOverload) or op == _WAIT or _has_lists(node.meta.get("val")):
                raise Unsayable
            arguments = self._arguments(args, kwargs)
            self.operators.setdefault(op, target)
        except Unsayable:
            op, arguments = self._python_operator(node, target, args)
        left = f"{results} = " if results else ""
        self.lines.append(f"  {left}{op}({arguments}){self._location(node)}")

    def _target_name(self, target: Any) -> str:
        name = self.target_names.get(target)
        if name is None:
            name = self.target_names[target] = _plain_name(target)
        return name

    def _literal(self, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int):
            return SymbolicValue(value, type(value))
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
        texts: list[str] = []
        self.names[node] = self._item_names(node, val, _wanted_items(node, len(val)), texts)
        return ", ".join(texts)

    def _item_names(self, node: Node, val: Sequence[Any], wanted: dict[int, str], texts: list[str]) -> list[Any]:
        """Names of a list's items, a list for each list in it; the texts of all results in order go to ``texts``."""
        names: list[Any] = []
        for k, item in enumerate(val):
            if isinstance(item, (list, tuple)):
                prefix = wanted.get(k, f"{node.name}__{k}")
                inner = {j: f"{prefix}__{j}" for j in range(len(item))}
                names.append(self._item_names(node, item, inner, texts))
            elif item is None or k not in wanted:
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
        return names

    def _getitem(self, node: Node) -> None:
        source, index = node.args
        items = self.names.get(source)
        if not isinstance(items, list):
            raise ConvertError(f"`{node.name}` takes an item of `{source}`, which is no list")
        self.names[node] = items[index]

    # -- arguments -------------------------------------------------------------------------------------------

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        texts = [self._text(a) for a in args]
        for key, value in kwargs.items():
            if key == "generator" and value is None:
                continue
            texts.append(f"{key}={self._text(value)}")
        return ", ".join(texts)

    def _text(self, value: Any) -> str:
        formatter = self.formatters.get(type(value))
        if formatter is None:
            raise Unsayable
        return formatter(value)

    def _node_text(self, node: Node) -> str:
        text = self.names.get(node)
        if isinstance(text, str):
            self.used.add(text)
            return text
        if isinstance(text, list):
            return "[" + ", ".join(self._item_text(t) for t in text) + "]"
        if isinstance(text, _PythonObject) and text.value is None:
            return "none"
        raise Unsayable

    def _item_text(self, item: Any) -> str:
        if isinstance(item, str):
            return item
        if isinstance(item, _PythonObject) and item.value is None:
            return "none"
        raise Unsayable

    def _list_text(self, values: Sequence[Any]) -> str:
        return "[" + ", ".join([self._text(v) for v in values]) + "]"

    def _python_operator(self, node: Node, target: Any, arguments: Sequence[Any]) -> tuple[str, str]:
        """Makes the call a Python operator over tensors and sizes; returns its name and its arguments."""
        flat: list[str] = []
        positions: dict[str, int] = {}

        def leaf(text: str) -> Leaf:
            self.used.add(text)
            if text not in positions:
                positions[text] = len(flat)
                flat.append(text)
            return Leaf(positions[text])

        def template(value: Any) -> Any:
            if isinstance(value, Node):
                return from_name(self.names.get(value), value)
            if isinstance(value, torch.SymInt):
                return leaf(self._size(value))
            if isinstance(value, (torch.SymFloat, torch.SymBool)):
                return from_name(_symbolic(value), node)
            if isinstance(value, (list, tuple)):
                return rebuild_sequence(value, [template(v) for v in value])
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
            if isinstance(name, Passed):
                raise ConvertError(f"`{node.name}` takes `{source}`, the ragged size of a nested tensor")
            if isinstance(name, SymbolicValue):
                free = _sorted_symbols(sympy.sympify(name.expr))
                return Computed(name, {s: leaf(self._expr_text(s)) for s in free})
            raise ConvertError(f"`{node.name}`: its argument `{source}` has no value")

        args = template(tuple(arguments))
        kwargs = template(dict(node.kwargs))
        op = self._target_name(target)
        short = re.sub(r"\W+", "_", op.rsplit(".", 2)[-2] if op.count(".") >= 2 else op).strip("_")
        name = f"python.{short}.call_{len(self.operators)}"
        self.operators[name] = python_operators.operator(target, args, kwargs)
        return name, ", ".join(flat)

    # -- outputs ---------------------------------------------------------------------------------------------

    def _outputs(self, returned: Any) -> tuple[list[Output], list[str]]:
        values = returned if isinstance(returned, (list, tuple)) else (returned,)
        outputs: list[Output] = []
        texts: list[str] = []
        # A tensor that is returned twice is one object: autograd counts writes to it by the object.
        positions: dict[str, int] = {}
        for value in values:
            name = self.names.get(value) if isinstance(value, Node) else value
            if isinstance(name, _PythonObject):
                name = name.value
            if isinstance(name, torch.SymInt):
                name = self._size(name)
            if isinstance(name, str):
                self.used.add(name)
                if name not in positions:
                    positions[name] = len(texts)
                    # Outside of brackets `//` begins a comment.
                    texts.append(f"({name})" if "//" in name else name)
                outputs.append(positions[name])
            elif name is None:
                outputs.append(len(texts))
                texts.append("none")
            elif isinstance(name, SymbolicValue) and not getattr(name.expr, "free_symbols", ()):
                outputs.append(Literal(name.cast(name.expr)))
            elif isinstance(name, (bool, int, float)):
                outputs.append(Literal(name))
            elif isinstance(name, Passed):
                outputs.append(name)
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
                device = device_text(val.device)
            except Unsayable:
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
            text = self.expr_texts[expr] = self._new_expr_text(expr)
        return text

    def _new_expr_text(self, expr: Any) -> str:
        # That an extent is one decides whether it is broadcast. A guard may say so of an expression that doesn't
        # simplify by itself.
        if not expr.is_Symbol and guarded_to_be(self.shape_env, expr, 1):
            return "1"
        expr = named_where_unwritable(expr.xreplace(self._same()), self._computed_symbol)
        for symbol in expr.free_symbols.difference(self.computed.values()):
            self.symbols.setdefault(symbol)
        return size_text(expr)

    def _same(self) -> dict[sympy.Symbol, sympy.Symbol]:
        """For sizes that depend on data the equal one that stands for them: one that an argument has, if any."""
        if self.same is None:
            pairs = list(equal_unbacked_symbols(self.shape_env))
            shown = {s for n in self.gm.graph.find_nodes(op="placeholder") for s in _free_symbols(n.meta.get("val"))}
            self.same = {}
            for pair in pairs:
                first, second = sorted((self.same.get(s, s) for s in pair), key=lambda s: (s not in shown, s.name))
                if first != second:
                    self.same = {k: first if v == second else v for k, v in self.same.items()} | {second: first}
        return self.same

    def _computed_symbol(self, expr: Any) -> sympy.Expr:
        if guarded_to_be(self.shape_env, expr, 1):
            return sympy.Integer(1)
        symbol = sympy.Symbol(f"computed{len(self.computed)}", integer=True)
        return self.computed.setdefault(expr, symbol)

    def _location(self, node: Node) -> str:
        trace = node.meta.get("stack_trace")
        if not trace:
            return ""
        text = self.locations.get(trace)
        if text is None:
            text = self.locations[trace] = _innermost_user_frame(trace)
        return text

    # -- the whole -------------------------------------------------------------------------------------------

    def _finish(self, placeholders: list[Node], outputs: list[Output], output_texts: list[str]) -> Converted:
        tensor_inputs: list[str] = []
        tensor_positions: list[int] = []
        lazy: list[int] = []
        unguarded: set[int] = set()
        for k, node in enumerate(placeholders):
            val = node.meta.get("val")
            if isinstance(val, torch.Tensor) and self.names[node] in self.used:
                if val.is_conj() or val.is_neg():
                    lazy.append(k)
                if node.name.startswith("tangents"):
                    unguarded.add(k)
                tensor_inputs.append(f"%{node.name}: {self._type(val, node)}")
                tensor_positions.append(k)

        sources, computed = self._sources(placeholders, tensor_positions)
        # Sizes that depend on data have no hint: a backward graph gets them by its arguments.
        declared = [
            f"size {s}" if (hint := self._hint(s)) is None else f"size {s} = {hint}"
            for s in self.symbols
            if s not in sources.names
        ]
        hints = [(s, self._hint(s)) for s in sources.names] + [
            (s, self._computed_hint(e)) for e, s in self.computed.items()
        ]
        size_texts = [f"{s}: size" if hint is None else f"{s}: size = {hint}" for s, hint in hints]
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
            size_positions=sources.positions,
            derived=sources.derived,
            computed=computed,
            tensor_positions=tensor_positions,
            argument_count=len(placeholders),
            constants=self.constants,
            operators=self.operators,
            outputs=outputs,
            lazy_positions=lazy,
            unguarded_positions=unguarded,
            storage_offsets={
                k: offset
                for k, node in enumerate(placeholders)
                if node in self.placed and type(offset := first_element(node)) is int
            },
        )

    def _sources(
        self, placeholders: list[Node], tensor_positions: list[int]
    ) -> tuple[SymbolSources, list[ComputedSize]]:
        try:
            computed = [self._computed_size(expr, symbol, placeholders) for expr, symbol in self.computed.items()]
            return find_sources(self.symbols, placeholders, tensor_positions), computed
        except UnknownSize as error:
            symbols = {error.symbol} | {s for s, other in self._same().items() if other == error.symbol}
            made = (n for n in self.gm.graph.nodes if symbols & _free_symbols(n.meta.get("val")))
            raise _error_at(next(made, None), error) from error

    def _computed_size(self, expr: Any, symbol: sympy.Symbol, placeholders: list[Node]) -> ComputedSize:
        free = _sorted_symbols(expr)
        return ComputedSize(symbol, size_function(expr, free), derive(free, placeholders))

    def _hint(self, symbol: sympy.Symbol) -> int | None:
        return symbol_hint(self.shape_env, symbol)

    def _computed_hint(self, expr: Any) -> int | None:
        free = _sorted_symbols(expr)
        hints = [self._hint(s) for s in free]
        return None if None in hints else int(size_function(expr, free)(*hints))


def _has_lists(val: Any) -> bool:
    """Whether a result is a list with lists in it, which only a Python operator flattens."""
    return isinstance(val, (list, tuple)) and any(isinstance(item, (list, tuple)) for item in val)


def _wanted_items(node: Node, count: int) -> dict[int, str]:
    """The items of a list that are used, with the name of the first node that takes each."""
    wanted: dict[int, str] = {}
    for user in node.users:
        if user.target is operator.getitem and isinstance(user.args[1], int):
            wanted.setdefault(user.args[1] % count, user.name)
        else:
            for k in range(count):
                wanted.setdefault(k, f"{node.name}__{k}")
    return wanted


def _check_extent(node: Node, root: Node, args: Sequence[Any]) -> None:
    """Refuses a view beyond the memory of the tensor that it is a view of, and leaves it to eager mode's own error.

    A fake tensor's storage grows with such a view, so the memory is reckoned from the tensor that was computed. An
    argument may lie in a larger storage: it isn't checked.
    """
    if root.op != "call_function":
        return
    size, stride, offset = args[-3:]
    made = root.meta["val"]
    size, stride, (offset,), shape, strides = (
        [_example(n) for n in numbers] for numbers in (size, stride, [offset], made.shape, made.stride())
    )
    if None in (*size, *stride, offset, *shape, *strides) or 0 in size:
        return
    held = last_element(shape, strides)
    last = offset + last_element(size, stride)
    if last > held:
        raise ConvertError(f"`{node.name}` views element {last} of `{root.name}`, which ends at {held}")


def _example(size: Any) -> int | None:
    """A size as it was when the graph was traced."""
    if isinstance(size, Node):
        size = size.meta.get("val")
    if type(size) is int:
        return size
    return size.node.hint if isinstance(size, torch.SymInt) and size.node.has_hint() else None


def _symbolic(val: Any) -> SymbolicValue:
    return SymbolicValue(val.node.expr, float if isinstance(val, torch.SymFloat) else bool)


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


def _plain_name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    name = getattr(target, "_name", None) or getattr(target, "__name__", type(target).__name__)
    return str(name).replace("::", ".")


def _innermost_user_frame(trace: str) -> str:
    frame = _user_frame(trace)
    return "" if frame is None else f" loc({string_text(frame[0])}:{frame[1]})"


def _user_frame(trace: str | None) -> tuple[str, str] | None:
    """File and line of the innermost call outside of PyTorch, or of the innermost one."""
    frames = _FRAME.findall(trace or "")
    if not frames:
        return None
    return next((f for f in reversed(frames) if not f[0].startswith(_TORCH_FOLDER)), frames[-1])


def _error_at(node: Node | None, error: Exception) -> ConvertError:
    """The error with the operator and the user's source line."""
    if node is None:
        return ConvertError(str(error))
    frame = _user_frame(node.meta.get("stack_trace"))
    where = f"{frame[0]}:{frame[1]}: " if frame else ""
    operator_name = f"{_plain_name(node.target)}: " if node.op == "call_function" else ""
    text = str(error)
    if not isinstance(error, ConvertError):
        text = f"`{node.name}` can't be converted: {type(error).__name__}: {error}"
    return ConvertError(f"{where}{operator_name}{text}")


def located(message: str, file_name: str, text: str) -> str:
    """The message about a line of a program's text, with the user's source line that this one stands for."""
    position = re.match(re.escape(file_name) + r":(\d+)", message)
    lines = text.splitlines()
    line = int(position[1]) if position else 0
    found = _LOCATION.search(lines[line - 1]) if 0 < line <= len(lines) else None
    return message if found is None else f"{json.loads(found[1])}:{found[2]}: {message}"


def _sorted_symbols(expr: Any) -> list[sympy.Symbol]:
    return sorted(expr.free_symbols, key=str)


def _free_symbols(val: Any) -> set[sympy.Symbol]:
    sizes = [s for t in tree_leaves(val) if isinstance(t, torch.Tensor) for s in t.shape]
    sizes += [s for s in tree_leaves(val) if isinstance(s, torch.SymInt)]
    return {symbol for s in sizes if isinstance(s, torch.SymInt) for symbol in s.node.expr.free_symbols}
