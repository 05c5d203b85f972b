"""The ``torch.compile`` backend: Dynamo's graph through AOTAutograd, then each graph into one loafc program.

No compiler logic stands here. What fails to compile runs in eager mode, graph by graph, with a warning.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch.fx import GraphModule

from . import _loafc, debug, metrics
from ._torch_compat import aot_backend, min_cut_partition, no_fake_mode
from .convert import Converted, Literal, Output, Passed, convert, located
from .decompositions import decompositions
from .dropout import draw_for_dropout_of_all
from .errors import CompileError, ConvertError, LoafcWarning, OptionError
from .externs import Operators
from .restrided import eager_for_parts, views_what_it_writes
from .storages import Storage, expose_storages

# TorchInductor's modes choose among its own settings; loafc has one setting for all of them.
_MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

_FOLDERS = ("cache_dir", "debug_dir")

_graph_numbers = itertools.count()
_number_lock = threading.Lock()


@dataclass(frozen=True)
class CompiledGraph:
    """A graph that was compiled: its kind ("forward", "backward" or "inference"), text and report."""

    name: str
    kind: str
    text: str
    report: Any
    seconds: dict[str, float]


Observer = Callable[[CompiledGraph], None]


def loafc(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    **unknown: Any,
) -> Callable[..., Any]:
    """Compiles what Dynamo captured. ``options`` are loafc's (see ``loafc._loafc.Options``).

    Raises OptionError for an option that doesn't exist, and CompileError for a graph that can't be compiled
    when the option ``fallback`` is false.
    """
    if unknown:
        raise OptionError(f"unknown argument of the loafc backend: {', '.join(sorted(unknown))}")
    if mode not in _MODES:
        raise OptionError(f"unknown mode {mode!r}; known are {', '.join(repr(m) for m in _MODES if m)}")
    return backend_with(options)(gm, example_inputs)


def backend_with(options: Mapping[str, Any] | None, observe: Observer | None = None) -> Callable[..., Any]:
    """The backend with these options; ``observe`` is told of each graph that is compiled."""
    parsed = parse_options(options)

    def compile_kind(gm: GraphModule, _example_inputs: Sequence[Any], kind: str) -> Callable[..., Any]:
        return compile_graph(gm, kind, parsed, observe)

    backend = backend_of(compile_kind)

    def with_restrided(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        draw_for_dropout_of_all(gm)
        run = backend(gm, example_inputs)
        return eager_for_parts(run, gm, parsed.fallback) if views_what_it_writes(gm) else run

    return with_restrided


def backend_of(compile_kind: Callable[[GraphModule, Sequence[Any], str], Callable[..., Any]]) -> Callable[..., Any]:
    """AOTAutograd as loafc runs it, in front of any compiler of a functional ATen graph of some kind."""
    return aot_backend(**aot_settings(compile_kind))


def aot_settings(compile_kind: Callable[[GraphModule, Sequence[Any], str], Callable[..., Any]]) -> dict[str, Any]:
    """How loafc runs AOTAutograd in front of such a compiler."""
    return {
        "fw_compiler": partial(compile_kind, kind="forward"),
        "bw_compiler": partial(compile_kind, kind="backward"),
        "inference_compiler": partial(compile_kind, kind="inference"),
        "partition_fn": min_cut_partition(),
        "decompositions": decompositions(),
        "keep_inference_input_mutations": True,
    }


def parse_options(options: Mapping[str, Any] | None) -> _loafc.Options:
    """Defaults, then ``LOAFC_...`` of the environment, then these."""
    _warn_of_unknown_variables()
    if not isinstance(options, (Mapping, type(None))):
        raise OptionError(f"options are a dict from names to values, not {options!r}")
    texts: dict[str, str] = {}
    for name, value in (options or {}).items():
        if not isinstance(name, str):
            raise OptionError(f"the name of an option is a string, not {name!r}")
        texts[name] = _option_text(name, value)
    given = {name.replace("-", "_") for name in texts}
    texts |= {name: text for name, text in debug.options_from_environment().items() if name not in given}
    return _loafc.Options(texts)


@cache
def _warn_of_unknown_variables() -> None:
    warning = _loafc.Options.warning_of_unknown_variables()
    if warning is not None:
        warnings.warn(warning, LoafcWarning, stacklevel=2)


def _option_text(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif name.replace("-", "_") in _FOLDERS and not isinstance(value, str):
        raise OptionError(f"option `{name}` is a folder: a string or a path, not {value!r}")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float, str)):
        return str(value)
    raise OptionError(f"option `{name}` can't be {value!r}: options are numbers, truth values, strings and paths")


@cache
def _warn_once(warning: str) -> None:
    warnings.warn(warning, LoafcWarning, stacklevel=2)


def compile_graph(
    gm: GraphModule, kind: str, options: _loafc.Options, observe: Observer | None = None
) -> Callable[[list[Any]], Sequence[Any]]:
    """Compiles one functional ATen graph into a function that takes a list of arguments and empties it."""
    with _number_lock:
        name = f"graph_{next(_graph_numbers)}_{kind}"
    try:
        with no_fake_mode():
            return _compile(gm, name, kind, options, observe)
    except CompileError as error:
        if not options.fallback:
            raise
        metrics.add_fallback()
        warnings.warn(
            f"loafc can't compile {name} ({len(gm.graph.nodes)} nodes) and runs it in eager mode: {error}",
            LoafcWarning,
            stacklevel=2,
        )
        return _eager(gm)


def _compile(
    gm: GraphModule, name: str, kind: str, options: _loafc.Options, observe: Observer | None
) -> Callable[[list[Any]], Sequence[Any]]:
    start = time.perf_counter()
    try:
        exposed, storages = expose_storages(gm)
        converted = convert(exposed, name)
    except CompileError:
        raise
    except Exception as error:
        raise ConvertError(f"the graph can't be converted: {type(error).__name__}: {error}") from error
    convert_seconds = time.perf_counter() - start
    if options.debug_dir is not None:
        # Before compiling, so that it is there when compiling fails.
        debug.write(options.debug_dir, f"{name}.loaf", converted.text)

    try:
        program = _loafc.compile(
            converted.text,
            f"{name}.loaf",
            options,
            _input_sources(converted),
            Operators(converted.operators),
        )
    except CompileError as error:
        raise CompileError(located(str(error), f"{name}.loaf", converted.text)) from error
    seconds = dict(program.compile_seconds)
    seconds["convert"] = seconds.get("convert", 0.0) + convert_seconds
    report = program.report
    for warning in report.warnings:
        _warn_once(f"loafc: {warning}")
    metrics.add_graph(report, seconds)
    if observe is not None:
        observe(CompiledGraph(name, kind, converted.text, report, seconds))
    run = _boxed(program, converted)
    if not storages and not converted.storage_offsets:
        return run
    return _placed(run, gm, name, converted.storage_offsets, storages, options)


def _input_sources(converted: Converted) -> list[tuple[Any, ...]]:
    """Where each input of the program comes from, in the program's order."""
    sources: list[tuple[Any, ...]] = [("size", k) for k in converted.size_positions]
    sources += [("derived", d.position, d.kind, d.dim, d.factor, d.offset) for d in converted.derived]
    # Computed sizes are passed behind the graph's own arguments.
    sources += [("size", converted.argument_count + k) for k in range(len(converted.computed))]
    sources += [("tensor", k, k in converted.unguarded_positions) for k in converted.tensor_positions]
    sources += [("constant", t) for t in converted.constants]
    return sources


def _boxed(program: _loafc.Program, converted: Converted) -> Callable[[list[Any]], Sequence[Any]]:
    lazy = converted.lazy_positions
    computed = converted.computed
    outputs = converted.outputs

    if not lazy and not computed and converted.returns_program_outputs:

        def run(args: list[Any]) -> Sequence[Any]:
            return program(args)

    else:

        def run(args: list[Any]) -> Sequence[Any]:
            for k in lazy:
                args[k] = _resolved(args[k])
            args += [size.value(args) for size in computed]
            passed = {o.position: args[o.position] for o in outputs if isinstance(o, Passed)}
            results = program(args)
            return [_output(o, results, passed) for o in outputs]

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _resolved(arg: torch.Tensor) -> torch.Tensor:
    """The argument without a lazy conjugation or negation, with the strides that the program is compiled for.

    A copy of a tensor with gaps has other ones.
    """
    real = arg.resolve_conj().resolve_neg()
    if real.stride() == arg.stride():
        return real
    return torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device=arg.device).copy_(real)


def _output(output: Output, results: Sequence[Any], passed: Mapping[int, Any]) -> Any:
    if isinstance(output, Literal):
        return output.value
    return passed[output.position] if isinstance(output, Passed) else results[output]


def _placed(
    run: Callable[[list[Any]], Sequence[Any]],
    gm: GraphModule,
    name: str,
    storage_offsets: Mapping[int, int],
    storages: Sequence[Storage],
    options: _loafc.Options,
) -> Callable[[list[Any]], Sequence[Any]]:
    """Runs arguments that start elsewhere in their storage than those compiled for in eager mode."""
    offsets = {**storage_offsets, **{s.position: s.offset for s in storages}}
    eager = _eager(gm)

    def is_held(storage: Storage, arg: torch.Tensor) -> bool:
        return storage.elements * arg.itemsize <= arg.untyped_storage().nbytes()

    def run_where_placed(args: list[Any]) -> Sequence[Any]:
        placed = all(args[k].storage_offset() == offset for k, offset in offsets.items())
        if placed and all(is_held(s, args[s.position]) for s in storages):
            for s in storages:
                args[s.position] = args[s.position].as_strided((s.elements,), (1,), 0)
            return run(args)
        reason = "an argument of as_strided starts elsewhere in its storage than the one compiled for"
        if not options.fallback:
            raise CompileError(f"{name}: {reason}")
        metrics.add_fallback()
        warnings.warn(f"loafc runs {name} in eager mode: {reason}", LoafcWarning, stacklevel=2)
        return eager(args)

    run_where_placed._boxed_call = True  # type: ignore[attr-defined]
    return run_where_placed


def _eager(gm: GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
    def run(args: list[Any]) -> Sequence[Any]:
        values = list(args)
        args.clear()
        return gm(*values)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
