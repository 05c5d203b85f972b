"""What rounding decides is told from mistakes, however large either is."""

from __future__ import annotations

import pytest
import torch
from functorch.compile import make_boxed_func
from loafc.check import model_run, sensitivity
from loafc.check.high_precision import HighPrecision
from loafc.check.model_run import Case, examine
from loafc.check.sensitivity import Point, judge, move, points
from torch._dynamo.backends.common import aot_autograd

TOLERANCE = 1e-3


class Gates(torch.nn.Module):
    """A layer whose rectifiers lie so close to zero that rounding opens or closes one in a few of them."""

    def __init__(self, features: int = 48, rows: int = 32) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.randn(features, features) / features**0.5)
        self.second = torch.nn.Parameter(torch.randn(features))
        with torch.no_grad():
            x = torch.randn(rows, features)
            self.register_buffer("x", x)
            # For one feature, in some rows, all but zero.
            before = x @ self.first
            self.register_buffer("shift", torch.where(torch.arange(rows) % 9 == 7, before[:, 5], before[:, 5] - 1))

    def forward(self) -> torch.Tensor:
        before = self.x @ self.first
        opened = (before - torch.nn.functional.pad(self.shift[:, None], (5, before.shape[1] - 6))).relu()
        return (opened * self.second * 3).square().sum() + opened.sum() * 40


def gradients(module: Gates, reordered: bool) -> dict[str, torch.Tensor]:
    """The gradients; ``reordered`` sums the products in another order, which rounds otherwise."""
    twin = Gates()
    twin.load_state_dict(module.state_dict())
    if reordered:
        order = torch.randperm(twin.first.shape[0], generator=torch.Generator().manual_seed(1))
        first, x = twin.first.detach()[order].clone().requires_grad_(), twin.x[:, order]
        before = x[:, ::2] @ first[::2] + x[:, 1::2] @ first[1::2]
        opened = (before - torch.nn.functional.pad(twin.shift[:, None], (5, before.shape[1] - 6))).relu()
        loss = (opened * twin.second * 3).square().sum() + opened.sum() * 40
        loss.backward()
        back = torch.empty_like(first)
        back[order] = first.grad
        return {"first": back, "second": twin.second.grad}
    twin().backward()
    return {"first": twin.first.grad, "second": twin.second.grad}


def findings(mistake=None):
    """What is found about the gates, with a mistake in the second program's gradients of the first layer."""
    torch.manual_seed(0)
    module = Gates()
    state = {k: v.clone() for k, v in module.state_dict().items()}

    def run(second, seed):
        module.load_state_dict(state)
        move(module.parameters(), seed)
        found = gradients(module, second)
        if second and mistake is not None:
            found["first"] = mistake(found["first"].clone())
        return found

    return points(run)


def test_a_rectifier_that_rounding_opens_is_no_mistake():
    found = findings()
    errors = [(p.got["first"] - p.want["first"]).abs().max() / p.want["first"].abs().max() for p in found]
    assert max(errors) > 10 * TOLERANCE, "rounding decides nothing here"
    assert all(f.fine for f in judge(found, {"first": TOLERANCE, "second": TOLERANCE}))


def _scaled(gradient):
    return gradient * 1.01


def _wrong_row(gradient):
    gradient[3] = gradient[4]
    return gradient


def _wrong_element(gradient):
    gradient[3, 5] += 0.4 * gradient.abs().max()
    return gradient


def _shifted(gradient):
    return gradient.roll(1, 0)


@pytest.mark.parametrize("mistake", [_scaled, _wrong_row, _wrong_element, _shifted])
def test_a_mistake_no_larger_than_what_rounding_decides_is_found(mistake):
    first, second = judge(findings(mistake), {"first": TOLERANCE, "second": TOLERANCE})
    assert not first.fine and first.severity > 1
    assert second.fine


def _noisy(noise, shift=0.0, mistake=lambda t: t, shape=(64, 96)):
    generator = torch.Generator().manual_seed(3)
    exact = torch.randn(shape, generator=generator)

    def rounded():
        return exact + noise * torch.randn(shape, generator=generator)

    return [Point({"g": mistake(rounded()) + shift}, {"g": rounded()}, {"g": rounded()}) for _ in range(5)]


@pytest.mark.parametrize("noise", [1e-6, 1e-2, 0.1])
@pytest.mark.parametrize("mistake", [lambda t: t * 1.02, lambda t: torch.cat([t[:1], t[:1], t[2:]]), lambda t: 0 * t])
def test_factors_and_rows_stand_out_of_noise(noise, mistake):
    (fine,) = judge(_noisy(noise), {"g": TOLERANCE})
    (wrong,) = judge(_noisy(noise, mistake=mistake), {"g": TOLERANCE})
    assert fine.fine and not wrong.fine


@pytest.mark.parametrize("shape", [(), (1,), (7,), (0, 3)])
def test_few_elements_are_not_found_wrong_by_chance(shape):
    for seed in range(200):
        torch.manual_seed(seed)
        found = [Point(*({"g": 1 + 0.01 * torch.randn(shape)} for _ in range(3))) for _ in range(5)]
        (finding,) = judge(found, {"g": TOLERANCE})
        assert finding.severity < 2
    if torch.zeros(shape).numel():
        assert not judge(_noisy(1e-6, shift=0.01, shape=shape), {"g": TOLERANCE})[0].fine


def test_a_number_that_does_not_move_may_be_rounded_to_the_next():
    near = torch.full((200,), 0.9, dtype=torch.bfloat16)
    above = near.nextafter(torch.tensor(2.0, dtype=torch.bfloat16))
    assert judge([Point({"v": above}, {"v": near}, {"v": near})] * 5, {"v": 1e-4})[0].fine
    assert not judge([Point({"v": near * 1.03}, {"v": near}, {"v": near})] * 5, {"v": 1e-4})[0].fine


def test_an_error_of_the_first_program_itself_is_seen_beside_float64():
    generator = torch.Generator().manual_seed(2)
    base, *noise = (torch.randn(100, generator=generator, dtype=torch.float64) for _ in range(6))
    truth = [base + 1e-5 * n for n in noise]
    found = [Point({"v": t.float()}, {"v": (0.98 * t).float()}, {"v": (0.98 * t).float()}) for t in truth]
    assert not judge(found, {"v": TOLERANCE})[0].fine
    assert judge(sensitivity.beside_truth(found, lambda seed: {"v": truth[seed - 1]}), {"v": TOLERANCE})[0].fine
    found = [Point({"v": (0.95 * t).float()}, p.want, p.elsewhere) for p, t in zip(found, truth, strict=True)]
    assert not judge(sensitivity.beside_truth(found, lambda seed: {"v": truth[seed - 1]}), {"v": TOLERANCE})[0].fine


def test_results_that_are_zero_in_some_runs_can_be_judged():
    still, none = torch.full((100,), 2.0), torch.zeros(100)
    found = [Point({"v": w * 1.0}, {"v": w}, {"v": w}) for w in (still, none, still, none, still)]
    assert judge(found, {"v": TOLERANCE})[0].severity == 0.0
    wrong = [Point({"v": p.want["v"] + 1}, p.want, p.elsewhere) for p in [found[0]] * 4 + [found[1]]]
    assert not judge(wrong, {"v": TOLERANCE})[0].fine


def test_positions_may_differ_where_they_move():
    still, other = torch.tensor([3, 1, 4]), torch.tensor([3, 1, 5])
    assert judge([Point({"i": other}, {"i": still}, {"i": other})] * 5, {"i": 1e-4})[0].fine
    assert not judge([Point({"i": other}, {"i": still}, {"i": still})] * 5, {"i": 1e-4})[0].fine


@pytest.mark.parametrize("got", [torch.tensor([1.0, float("nan")]), torch.tensor([float("inf"), 2.0]), torch.zeros(3)])
def test_what_can_not_be_compared_is_wrong(got):
    want = torch.tensor([1.0, 2.0])
    (finding,) = judge([Point({"v": got}, {"v": want}, {"v": want})] * 5, {"v": 1.0})
    assert not finding.fine and finding.severity == float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_move_is_one_rounding(dtype):
    special = [0.0, -0.0, float("inf"), -float("inf"), torch.finfo(dtype).min, torch.finfo(dtype).max]
    start = torch.cat([torch.tensor(special, dtype=dtype), torch.randn(600).to(dtype)])
    state = torch.get_rng_state()
    moved, again, other = (start.clone() for _ in range(3))
    for tensor, seed in ((moved, 1), (again, 1), (other, 2)):
        move([tensor, torch.arange(3)], seed)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(moved, again) and not torch.equal(moved, other)
    assert torch.equal(moved[:6], start[:6])
    up, down = (start.nextafter(torch.tensor(way, dtype=dtype)) for way in (float("inf"), -float("inf")))
    counts = [(moved[6:] == t[6:]).sum().item() for t in (down, start, up)]
    assert sum(counts) == 600 and min(counts) > 150


def _split_product(a, b):
    return a[:, ::2] @ b[::2] + a[:, 1::2] @ b[1::2]


def _backend(factor):
    """Eager mode but for the order in which products are summed, and a factor of all gradients."""

    def forward(gm, example_inputs):
        for node in gm.graph.nodes:
            if node.target is torch.ops.aten.mm.default:
                node.target = _split_product
        gm.recompile()
        return make_boxed_func(gm)

    def backward(gm, example_inputs):
        run = forward(gm, example_inputs)
        return make_boxed_func(lambda *args: [g if g is None else g * factor for g in run(list(args))])

    return aot_autograd(fw_compiler=forward, bw_compiler=backward)


def test_models_whose_rounding_decides_are_told_from_wrong_ones(monkeypatch):
    def no_float64(drawn):
        raise RuntimeError("not in float64")

    # Beside a run in float64, eager mode would be seen to be as far off.
    monkeypatch.setattr(model_run, "HighPrecision", no_float64)
    case = Case(lambda: {"eval": None, "train": (Gates(), (), {})}, "training", torch.float32)
    found = examine(case, _backend(1.0))
    assert found["status"] == "rounding" and found["different"] > 0, found
    assert "not in float64" in found["detail"]
    assert found["moves"]["severity"] < 1 and found["moves"]["largest"] > TOLERANCE
    found = examine(case, _backend(1.01))
    assert found["status"] == "different" and found["moves"]["beyond"], found


def test_products_of_groups_have_a_form_in_float64():
    ends = torch.tensor([3, 3, 8], dtype=torch.int32)
    for left, right, offs in (
        ((8, 16), (3, 16, 8), ends),
        ((3, 8, 16), (16, 8), ends),
        ((8, 16), (16, 8), torch.tensor([3, 5, 16], dtype=torch.int32)),
        ((3, 8, 16), (3, 16, 8), None),
    ):
        a, b = torch.randn(left), torch.randn(right)
        want = torch._grouped_mm(a, b, offs=offs)
        with HighPrecision(torch.float32):
            got = torch._grouped_mm(a.double(), b.double(), offs=offs)
        torch.testing.assert_close(got, want.double(), rtol=1e-5, atol=1e-5)
    assert sensitivity.POINTS % 2, "the median is to be one of the runs"
