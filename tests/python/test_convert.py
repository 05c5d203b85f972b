"""Conversion of FX graphs to the text of tensor programs."""

from __future__ import annotations

import time

import pytest
import sympy
import torch
from loafc._torch_compat import aot_backend, inductor_decompositions, min_cut_partition
from loafc.convert import convert
from loafc.errors import ConvertError
from loafc.size_functions import named_where_unwritable, size_function
from loafc.sizes import linear_in, size_text
from torch.utils._sympy.functions import (
    CeilToInt,
    CleanDiv,
    FloorDiv,
    FloorToInt,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    ModularIndexing,
    OpaqueUnaryFn_exp,
    PythonMod,
    ToFloat,
    TruncToInt,
)


def capture(fn, *args, dynamic=False):
    """The graphs that AOTAutograd makes of a call, converted."""
    converted = []

    def compiler(gm, example_inputs):
        converted.append(convert(gm, "g"))

        def run(values):
            inputs = list(values)
            values.clear()
            return gm(*inputs)

        run._boxed_call = True
        return run

    backend = aot_backend(
        fw_compiler=compiler,
        bw_compiler=compiler,
        inference_compiler=compiler,
        partition_fn=min_cut_partition(),
        decompositions=inductor_decompositions(),
        keep_inference_input_mutations=True,
    )
    torch.compile(fn, backend=backend, dynamic=dynamic)(*args)
    return converted


def test_tensors_are_annotated_with_type_shape_and_layout():
    [c] = capture(lambda x: x.t() * 2, torch.randn(3, 4))
    assert "graph @g(%arg0_1: f32[3, 4]) {" in c.text
    assert "%permute: f32[4, 3] strides [1, 4] = aten.permute.default(%arg0_1, [1, 0])" in c.text
    assert c.tensor_positions == [0] and c.outputs == [0]


def test_calls_name_the_users_line():
    [c] = capture(lambda x: x + 1, torch.randn(3))
    assert 'loc("' + __file__ + '":' in c.text


def test_results_of_several_tensors_are_folded_in():
    [c] = capture(lambda x: x.split(2)[1] + 1, torch.randn(6))
    assert "_, %getitem_1: f32[2], _ = aten.split.Tensor(%arg0_1, 2)" in c.text


def test_constants_become_inputs():
    [c] = capture(lambda x: x + torch.tensor([1.0, 2.0]), torch.randn(2))
    assert len(c.constants) == 1 and "%_tensor_constant0: f32[2]" in c.text


def test_unused_arguments_are_left_out():
    [c] = capture(lambda x, y: y.exp(), torch.randn(2), torch.randn(3))
    assert len(c.tensor_positions) == 1 and "f32[2]" not in c.text


def test_mutation_is_a_copy_into_the_argument():
    [c] = capture(lambda x: x.add_(1), torch.randn(2))
    assert "aten.copy_.default(%arg0_1, %add)" in c.text


def test_sizes_come_from_integer_arguments():
    [c] = capture(lambda x: (x + 1, x.shape[0] * 2), torch.randn(5, 4), dynamic=True)
    first = c.text.splitlines()[0]
    assert ": size = 5" in first and len(c.size_positions) == 2 and not c.derived
    assert c.text.count("return %add, 2 * ") == 1


def test_backward_graph_finds_its_sizes():
    x = torch.randn(5, 4, requires_grad=True)
    graphs = []

    def fn(x):
        return (x.exp() * x.shape[0]).sum(0)

    def compiler(gm, example_inputs):
        graphs.append(convert(gm, "g"))
        run = lambda values: gm(*values)
        run._boxed_call = True
        return run

    backend = aot_backend(fw_compiler=compiler, bw_compiler=compiler, partition_fn=min_cut_partition())
    torch.compile(fn, backend=backend, dynamic=True)(x).sum().backward()
    assert len(graphs) == 2 and "size" in graphs[1].text


def test_complex_constants_become_python_operators():
    [c] = capture(lambda x: x * 1j, torch.randn(2))
    [name] = [n for n in c.operators if n.startswith("python.")]
    x = torch.randn(2)
    assert torch.equal(c.operators[name](x)[0], x * 1j)


def test_two_thousand_nodes_convert_in_sixty_milliseconds():
    def fn(x):
        for k in range(700):
            x = (x * 1.5 + k).sin()
        return x

    gms = []

    def compiler(gm, example_inputs):
        gms.append(gm)
        return gm

    torch.compile(fn, backend=aot_backend(fw_compiler=compiler))(torch.randn(4, 4))
    assert len(gms[0].graph.nodes) >= 2000
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        convert(gms[0], "g")
        best = min(best, time.perf_counter() - start)
    assert best < 0.06


S, T = sympy.symbols("s0 s1", integer=True, positive=True)

EXPRESSIONS = [
    S + T - 3,
    2 * S * T,
    S**3,
    FloorDiv(S, 4),
    FloorDiv(S + 1, T) * 2,
    CleanDiv(S * 4, 2),
    PythonMod(S, 7),
    Mod(S, 5),
    ModularIndexing(S, 2, 3),
    Max(S, T, 3),
    Min(S, 2 * T),
    CeilToInt(IntTrueDiv(S, 4)),
    FloorToInt(IntTrueDiv(S, 3)),
    -S + 100,
    (S + T) * (S - T) + 1,
    sympy.Rational(1, 2) * S * (S + 1),
]


@pytest.mark.parametrize("expr", EXPRESSIONS, ids=str)
def test_size_expressions_keep_their_value(expr):
    text = size_text(expr)
    for s, t in [(1, 1), (7, 2), (12, 5), (100, 33)]:
        want = int(expr.xreplace({S: sympy.Integer(s), T: sympy.Integer(t)}))
        assert eval(text, {"s0": s, "s1": t, "max": max, "min": min}) == want


def test_unknown_size_functions_are_refused_by_name():
    with pytest.raises(ConvertError, match="sin"):
        size_text(sympy.sin(S))


def test_what_no_program_can_compute_is_named_and_computed_by_python():
    third = TruncToInt(ToFloat(S) * sympy.Float(1 / 3))
    names = []

    def name(expr):
        names.append(expr)
        return sympy.Symbol(f"c{len(names)}", integer=True)

    assert size_text(named_where_unwritable(2 * third + T, name)) in ("s1 + (2 * c1)", "(2 * c1) + s1")
    assert names == [third]
    assert named_where_unwritable(S * T, name) == S * T and names == [third]
    # 1/3 of 15 digits would give one less.
    assert [size_function(third, [S])(n) for n in (3, 3 * 10**15, 8)] == [1, 10**15, 2]


def test_functions_that_python_has_no_text_for_are_computed_too():
    rounded = TruncToInt(OpaqueUnaryFn_exp(ToFloat(S)))
    assert size_function(rounded, [S])(3) == 20


def test_linear_sizes_are_solved():
    assert linear_in(2 * S + 3, S) == (2, 3)
    assert linear_in(S, S) == (1, 0)
    assert linear_in(S * T, S) is None
    assert linear_in(S**2, S) is None
    assert linear_in(5, S) is None
