"""torch.compile(backend="weft"): values and gradients equal eager's, in the emulator; what stays with torch is told."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import weft
from weft.frontend.compiling import _on_the_cpu
from weft.frontend.backend import GRAPHS, BadOption, backend
from weft.frontend.backend_options import OldTorch
from weft.options import options

EMULATE = {"emulate": True, "debug": True, "strict": True}


pytestmark = pytest.mark.usefixtures("fresh")


def compiled(function: Callable[..., Any], **changed: Any) -> Callable[..., Any]:
    return torch.compile(function, backend=backend, options={**EMULATE, **changed})


def compare(function: Callable[..., Any], *inputs: torch.Tensor, tolerance: float = 1e-5) -> None:
    """Values and gradients of a function, against eager torch in float64."""
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    exact = [x.detach().double().requires_grad_() if x.is_floating_point() else x for x in inputs]
    out, want = compiled(function)(*leaves), function(*exact)
    assert out.dtype is leaves[0].dtype or not leaves[0].is_floating_point()
    torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance)
    seed = torch.randn_like(want)
    out.backward(seed.to(out.dtype))
    want.backward(seed)
    for leaf, reference in zip(leaves, exact):
        if leaf.grad is not None:
            torch.testing.assert_close(leaf.grad.double(), reference.grad, rtol=tolerance * 4, atol=tolerance * 4)
    assert sum(graph.covered_nodes for graph in GRAPHS) > 0
    assert not any(call.fallback_reason for graph in GRAPHS for _, call in graph.regions)


def schedulers(kind: str) -> list[str]:
    return [k.scheduler for graph in GRAPHS if graph.kind == kind for _, call in graph.regions for k in call.kernels()]


def rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def rotated(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


CASES = {
    "layer norm": (lambda x, w, b: F.layer_norm(x, (33,), w, b), [(7, 33), (33,), (33,)]),
    "rms norm": (rms, [(5, 3, 40), (40,)]),
    "softmax": (lambda x: torch.softmax(x * 3, -1), [(6, 21)]),
    "log softmax": (lambda x: torch.log_softmax(x, 0), [(6, 21)]),
    "gelu with bias": (lambda x, b: F.gelu(x + b, approximate="tanh"), [(9, 31), (31,)]),
    "exact gelu": (lambda x: F.gelu(x), [(1, 65)]),
    "silu and multiply": (lambda x, y: F.silu(x) * y, [(8, 16), (8, 16)]),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), [(3, 4, 5, 5), (4,), (4,)]),
    "rope": (lambda x, c, s: x * c + rotated(x) * s, [(2, 3, 6, 8), (6, 8), (6, 8)]),
    "slices": (lambda x: x[:, 1:5] * x[:, -4:] + x[:, 0:1], [(4, 9)]),
    "transposed": (lambda x, y: torch.tanh(x.t() + y), [(17, 13), (13, 17)]),
    "variance": (lambda x: (x - x.mean(0)) / (x.var(0, correction=0) + 1e-3).sqrt(), [(19, 5)]),
    "stack and where": (lambda x, y: torch.where(x > y, torch.stack((x, y)).sum(0), x * 0.5), [(4, 6), (4, 6)]),
    "padded": (lambda x: F.pad(torch.sin(x), (1, 2)), [(3, 7)]),
    "steps": (lambda x: x[1::2, ::3] * 2 + x[:-1:2, 1::3], [(8, 9)]),
    "turned around": (lambda x: x.flip(-1, 0) * 2, [(3, 8)]),
    "rows by index": (lambda x: x[torch.tensor([1, -1, 0, 2, 1])].exp(), [(3, 8)]),
    "pairs by index": (lambda x: x[:, torch.tensor([[1, -1], [0, 2]]), torch.tensor([0, -2])] * 2, [(2, 3, 8)]),
    "gathered": (lambda x: x.gather(1, torch.tensor([[1, 0], [2, 2], [0, 7]])).exp(), [(3, 8)]),
    "running sum": (lambda x: x.cumsum(-1) * 2, [(3, 33)]),
    "repeated": (lambda x: x.repeat(2, 3) + 1, [(3, 5)]),
    "expanded": (lambda x, y: torch.where(x[:1].expand(4, 6) > 0, y[0], 0.5), [(4, 6), (4, 6)]),
    "last and first": (lambda x: x[:, -3:] + x[:, :3], [(5, 7)]),
    "heads": (lambda x: (x.view(x.shape[0], 3, 2, 4).transpose(1, 2) * 2).reshape(x.shape[0] * 2, 12), [(5, 24)]),
    "table of rows": (lambda w: F.embedding(torch.tensor([[1, 4], [0, 1], [2, 2]]), w) * 3, [(5, 12)]),
    "positions": (lambda x: x * torch.arange(x.shape[0]).unsqueeze(1) + torch.arange(x.shape[1], dtype=torch.float32), [(5, 6)]),
}  # fmt: skip


TOGETHER = [list(CASES)[first : first + 7] for first in range(0, len(CASES), 7)]
"""Cases that one graph computes, each with inputs and regions of its own: torch takes longer to trace a graph than weft to compute it."""


@pytest.mark.parametrize("names", TOGETHER, ids=lambda names: f"{names[0]} to {names[-1]}")
def test_values_and_gradients_equal_eager(names: list[str]) -> None:
    """Against eager torch in float64."""
    inputs = {name: [torch.randn(shape) for shape in CASES[name][1]] for name in names}

    def together(given: dict[str, list[torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {name: CASES[name][0](*given[name]) for name in names}

    given = {name: [x.clone().requires_grad_() for x in xs] for name, xs in inputs.items()}
    exact = {name: [x.double().requires_grad_() for x in xs] for name, xs in inputs.items()}
    outs, wanted = compiled(together)(given), together(exact)
    seeds = {name: torch.randn_like(want) for name, want in wanted.items()}
    torch.autograd.backward(list(outs.values()), [seed.float() for seed in seeds.values()])
    torch.autograd.backward(list(wanted.values()), list(seeds.values()))
    for name in names:
        told = functools.partial("{}: {}".format, name)
        torch.testing.assert_close(outs[name].double(), wanted[name], rtol=1e-5, atol=1e-5, msg=told)
        for leaf, reference in zip(given[name], exact[name]):
            assert (leaf.grad is None) is (reference.grad is None), name
            if leaf.grad is not None:
                torch.testing.assert_close(leaf.grad.double(), reference.grad, rtol=4e-5, atol=4e-5, msg=told)
    assert all(out.dtype is torch.float32 for out in outs.values())
    assert len({id(region) for graph in GRAPHS for region, _ in graph.regions}) >= 2 * len(names) - 4  # views alone make none
    assert not any(call.fallback_reason for graph in GRAPHS for _, call in graph.regions)


OPEN = ("rope", "slices", "padded", "last and first", "heads", "gathered", "rows by index", "expanded", "positions", "running sum", "stack and where")


@pytest.mark.parametrize("name", OPEN)
def test_sizes_may_be_symbols_in_views(name: str) -> None:
    """One graph for two sizes of the first axis, with gradients; all that moves data is in regions."""
    function, shapes = CASES[name]
    fast = torch.compile(function, backend=backend, options=EMULATE, dynamic=True)
    for extra in (0, 3):
        grown = [(shape[0] + (extra if shape[0] == shapes[0][0] and name != "gathered" else 0), *shape[1:]) for shape in shapes]
        inputs = [torch.randn(shape, requires_grad=True) for shape in grown]
        plain = [x.detach().clone().requires_grad_() for x in inputs]
        out, want = fast(*inputs), function(*plain)
        torch.testing.assert_close(out, want)
        assert out.stride() == want.stride()
        seed = torch.randn_like(want)
        out.backward(seed)
        want.backward(seed)
        for a, b in zip(inputs, plain):
            torch.testing.assert_close(a.grad, b.grad)
    assert {op for graph in GRAPHS for op in graph.torch_ops} <= {"aten.scatter_add.default", "aten._index_put_impl.default"}


def test_a_result_lies_in_memory_as_traced_and_not_as_an_input() -> None:
    x, w = torch.randn(2, 64, 16).transpose(1, 2), torch.randn(64)
    out = compiled(lambda x, w: (x * 2).clone(memory_format=torch.contiguous_format) * w)(x, w)
    assert out.stride() == (1024, 64, 1)
    torch.testing.assert_close(out, x * 2 * w)


def test_a_clone_of_a_part_has_memory_of_its_own() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = torch.mm(x, x.t())
        part = whole[:, :13]
        return whole, part.clone(memory_format=torch.contiguous_format), part.float().square().mean()

    x = torch.randn(16, 16)
    whole, part, _ = compiled(f)(x)
    assert part.stride() == (13, 1) and part.data_ptr() != whole.data_ptr()
    torch.testing.assert_close(part, whole[:, :13])


@pytest.mark.parametrize("function", [
    lambda x: x.repeat(2, 1, 1), lambda x: x.repeat(2, 3, 1), lambda x: x[None].expand(2, -1, -1).reshape(2, -1) + 1,
    lambda x: (x[:, None].expand(-1, 3, -1).reshape(-1, 3, x.shape[1]) * 2).transpose(0, 1).contiguous(),
])  # fmt: skip
def test_repeated_elements_have_memory_of_their_own_where_sizes_are_open(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A reshape of open sizes tells only at run time which axes repeat elements."""
    fast = torch.compile(function, backend=backend, dynamic=True, options={"emulate": True, "debug": True})
    for rows in (4, 5, 3):
        x = torch.randn(rows, 6)
        out, want = fast(x), function(x)
        assert out.stride() == want.stride()
        torch.testing.assert_close(out.add_(torch.arange(6.0).sum()), want + 15)


def test_a_sum_over_an_image_beside_a_value_per_channel_where_sizes_are_open() -> None:
    """The backward of an instance norm: rows of pixels are merged and cut into vectors, and what has no pixels is written once by the kernel that sums them."""

    def f(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n, c, height, width = x.shape
        scaled = (w[:, None, None] * x).reshape(1, n * c, height, width)
        factor = a * 2 + 1
        return scaled, factor, (scaled * factor[None, :, None, None]).reshape(x.shape).sum((0, 2, 3))

    fast = torch.compile(f, backend=backend, dynamic=True, options={"emulate": True, "strict": True})
    with options(strict_schedules=True):
        for shape in ((2, 4, 3, 4), (1, 4, 11, 8), (3, 4, 9, 9)):
            given = torch.randn(shape), torch.randn(4), torch.randn(shape[0] * 4)
            for out, want in zip(fast(*given), f(*[t.double() for t in given]), strict=True):
                torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)


def test_a_loss_behind_a_bias_has_its_gradient_in_one_kernel() -> None:
    """The logits' gradient and the sums of its columns are one kernel; no row is summed."""

    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(x, w, b), torch.arange(20, device=x.device) * 7)

    with options(strict_schedules=True):
        compare(f, torch.randn(20, 16), torch.randn(1000, 16), torch.randn(1000))
    assert schedulers("backward").count("reduction") == 1 and set(schedulers("backward")) <= {"reduction", "pointwise"}  # numbers of rows may be a kernel


def test_what_a_maximum_is_taken_of_is_not_computed_again_behind_a_view() -> None:
    """Else no element would equal the saved maximum, and its gradient be 0 / 0."""

    def f(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        y = (F.hardsigmoid(torch.cos(x).clamp(-1, 2)).reshape(-1) * 2).view(x.shape)
        return torch.sin(F.celu((y - y.amax(-1, keepdim=True)) @ m))

    compare(f, torch.randn(6, 9), torch.randn(9, 9), tolerance=1e-4)


def test_numbers_on_the_cpu_and_their_lookups() -> None:
    """A number that a kernel gets by value is read where a lookup of its product would read it from memory."""

    def rotated_and_scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        y = (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * scale).view(2, 16, 4, 16).transpose(1, 2)
        return y + rotated(y) * scale

    x, scale = torch.randn(2, 16, 64), torch.tensor(1.5)
    torch.testing.assert_close(compiled(rotated_and_scaled)(x, scale), rotated_and_scaled(x, scale))


def test_open_sizes_of_repeated_rows_and_squared_sizes() -> None:
    """A concatenation of rows that are only repeated has elements, and a product of equal sizes is made of one of them."""

    def f(x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[1]).expand(x.shape[0], -1)
        step = torch.cat([place[:, :1] - 1, place], -1)
        return step[:, 1:] * x + (x * 2).view(-1).sum() / (x.shape[0] * x.shape[0])

    fast = torch.compile(f, backend=backend, options=EMULATE, dynamic=True)
    for sizes in ((3, 8), (5, 12)):
        x = torch.randn(sizes)
        torch.testing.assert_close(fast(x), f(x))


def test_tensors_without_elements() -> None:
    x = torch.randn(0, 5)
    out = compiled(lambda x: (torch.exp(x) + x.sum(0), torch.cat([x, x]).sum(0) * 2))(x)
    assert out[0].shape == (0, 5) and bool((out[1] == 0).all()) and out[1].shape == (5,)


def test_cross_entropy_needs_no_gather() -> None:
    target = torch.tensor([3, 0, -100, 6])
    compare(lambda x: F.cross_entropy(x, target), torch.randn(4, 7))
    assert not any("nll" in op for graph in GRAPHS for op in graph.torch_ops)


def test_a_norm_backward_is_one_kernel() -> None:
    compare(rms, torch.randn(64, 1024), torch.randn(1024), tolerance=2e-5)
    assert schedulers("backward") == ["inner_outer_persistent"]


def test_a_training_step_of_a_block() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(F.gelu(self.up(self.norm(x))))

    block, exact = Block(), Block().double()
    exact.load_state_dict(block.state_dict())
    x = torch.randn(4, 5, 32)
    compiled(block)(x).square().sum().backward()
    exact(x.double()).square().sum().backward()
    for p, q in zip(block.parameters(), exact.parameters()):
        torch.testing.assert_close(p.grad.double(), q.grad, rtol=1e-4, atol=1e-4)
    assert {op for graph in GRAPHS for op in graph.torch_ops} <= {"aten.addmm.default", "aten.mm.default"}


def test_sizes_become_symbols() -> None:
    function = compiled(lambda x, w: rms(x, w))
    w = torch.randn(24)
    for rows in (3, 5, 8, 1):
        x = torch.randn(rows, 24)
        torch.testing.assert_close(function(x, w), rms(x, w))
    assert len(GRAPHS) == 3  # static, symbolic, and one row


def test_inputs_may_be_strided_and_expanded() -> None:
    x, y = torch.randn(9, 20)[:, ::2], torch.randn(1, 10).expand(9, 10)
    torch.testing.assert_close(compiled(lambda a, b: (a * b).sum(-1) + a[:, 0])(x, y), (x * y).sum(-1) + x[:, 0])


def test_16_bit_floats_are_rounded_once() -> None:
    x = torch.randn(8, 64).bfloat16()
    out = compiled(lambda v: torch.exp(v) * 3 + v)(x)
    want = x.double().exp() * 3 + x.double()
    assert out.dtype is torch.bfloat16
    torch.testing.assert_close(out.double(), want, rtol=2**-8, atol=2**-8)


def test_dropout_keeps_its_share_and_its_mask() -> None:
    x = torch.ones(64, 64, requires_grad=True)
    out = compiled(lambda v: F.dropout(v, 0.25, True) * 1.0)(x)
    kept = out != 0
    assert 0.68 < kept.float().mean() < 0.82  # 0.75, six standard deviations of 4096 draws
    out.sum().backward()
    torch.testing.assert_close(x.grad, kept * (1 / 0.75))


def test_what_torch_keeps_is_told() -> None:
    fast = compiled(lambda x: torch.linalg.inv(x) * 2)
    fast(torch.eye(3) + 0.1)
    text = weft.explain(fast)
    assert text == weft.explain()
    with pytest.raises(weft.WeftError, match="takes what torch.compile returned, or the path of a page, not a Linear that was not compiled"):
        weft.explain(nn.Linear(2, 2))
    assert "has no rule" in text and "1 of" in text.splitlines()[0] and "kernels: pointwise" in text


def test_a_page_tells_ops_places_bytes_and_kernels(tmp_path: Path) -> None:
    compiled(lambda x: torch.softmax(x.sort(-1)[0] * 2, -1))(torch.randn(3, 3))
    page = tmp_path / "page.html"
    weft.explain(page)
    text = page.read_text(encoding="utf-8")
    assert "<h2>Graph 0: inference" in text and "aten.sort" in text and "has no rule" in text
    assert "test_backend.py:" in text and "torch.softmax" in text  # the line of the program
    assert "36 B" in text and "__global__" in text and "src=" not in text and "href=" not in text  # 9 floats; the kernel's text; nothing from elsewhere


def test_times_of_regions_stand_beside_their_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On the CPU nothing is timed."""
    from weft.frontend import explain

    compiled(lambda x: torch.softmax(x.sort(-1)[0] * 2, -1))(torch.randn(3, 3))
    assert weft.explain(times=True) == weft.explain() and " us" not in weft.explain()
    monkeypatch.setattr(explain, "microseconds", lambda call: 0.25)
    page = tmp_path / "page.html"
    assert "0.2 us, 0.00 TB/s" in weft.explain(page, times=True)
    assert "0.2 us, 0.00 TB/s" in page.read_text(encoding="utf-8") and explain.bytes_of(GRAPHS[0].regions[0][0].inputs) == 36


def test_the_profiler_sees_regions_by_name() -> None:
    fast = compiled(lambda x: torch.softmax(x * 2, -1))
    x = torch.randn(3, 5)
    fast(x)
    with torch.profiler.profile() as profile:
        fast(x)
    assert any(e.key.startswith("weft_mul_") for e in profile.key_averages())


def test_cpu_tensors_run_eagerly_unless_asked(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(5)
    with caplog.at_level(logging.INFO, logger="weft.frontend"):
        torch.testing.assert_close(torch.compile(torch.sin, backend=backend)(x), x.sin())
    assert "runs it eagerly" in caplog.text
    assert "torch runs aten.sin.default (1x): its tensors are on the CPU; options={'emulate': True} runs" in weft.explain()


def test_values_of_options_are_checked() -> None:
    for given, said in (({"min_ops": 0}, "min_ops is 0, not 1 or more"), ({"strict": 1}, "strict is 1, not of type bool")):
        with pytest.raises(Exception, match=said):
            torch.compile(torch.sin, backend=backend, options=given)(torch.ones(3))


@pytest.mark.parametrize("given, name", [({"options": {"fast": 1}}, "fast"), ({"mode": "max-autotune"}, "max-autotune")])
def test_unknown_options_are_named(given: dict[str, Any], name: str) -> None:
    with pytest.raises(Exception, match=f"has no .* '{name}'") as caught:
        torch.compile(torch.sin, backend=backend, **given)(torch.ones(3))
    assert isinstance(caught.value, BadOption) or BadOption.code in str(caught.value)


def test_the_entry_point_is_declared() -> None:
    from importlib.metadata import entry_points

    found = {e.value for e in entry_points(group="torch_dynamo_backends") if e.name == "weft"}
    assert found <= {"weft.frontend.backend:backend"}


def test_reduce_overhead_records_nothing_on_the_cpu_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(4, 6).requires_grad_()
    fast = compiled(lambda x: torch.tanh(x) * x, graphs=True)
    with caplog.at_level(logging.WARNING, logger="weft.frontend"):
        fast(x).sum().backward()
    torch.testing.assert_close(x.grad, (torch.tanh(x) + x * (1 - torch.tanh(x) ** 2)).detach())
    assert [r.getMessage().split(":")[0] for r in caplog.records] == ["the forward graph is not recorded", "the backward graph is not recorded"]
    with pytest.raises(Exception, match="W880.*max-autotune"):
        torch.compile(lambda x: x + 1, backend=backend, mode="max-autotune")(x)


def test_a_loss_saves_16_bit_logits_and_no_log_probabilities() -> None:
    saved: list[list[tuple[torch.dtype, int]]] = []

    class Loss(nn.Module):
        def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(logits.float(), target)

    logits, target = torch.randn(16, 50).bfloat16().requires_grad_(), torch.randint(0, 50, (16,))
    exact = logits.detach().double().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append([(t.dtype, t.numel())]), t)[1], lambda t: t):
        loss = compiled(Loss())(logits, target)
    large = [entry for (entry,) in saved if entry[1] >= 16 * 50]
    assert large == [(torch.bfloat16, 800)]
    loss.backward()
    F.cross_entropy(exact, target).backward()
    torch.testing.assert_close(logits.grad.double(), exact.grad, atol=0.0, rtol=2**-7)


def test_the_gradient_of_a_maximum_finds_its_elements_again_in_16_bits() -> None:
    """What the maximum is of is not computed a second time, with other roundings, to be compared with the saved maximum."""
    x = torch.randn(6, 40).bfloat16().requires_grad_()
    y = compiled(lambda x: (F.gelu(x * 1.7) - F.gelu(x * 1.7).amax(-1, keepdim=True)).float().square().sum())(x)
    y.backward()
    assert bool(x.grad.isfinite().all()) and bool((x.grad != 0).any(-1).all())


def test_an_argument_in_a_wider_type_is_not_saved_for_its_maximum() -> None:
    """The gradient goes to the elements that equal the maximum; those of a widened argument are the same when they are computed again."""
    x, sink = torch.randn(6, 40).to(torch.bfloat16), torch.randn(1)

    def softmax(x: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
        largest = torch.maximum(x.float().amax(-1, keepdim=True), sink)
        shares = torch.exp(x.float() - largest)
        return shares / (shares.sum(-1, keepdim=True) + torch.exp(sink - largest))

    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    torch._dynamo.reset()
    out = torch.compile(softmax, backend=backend, options={"emulate": True, "strict": True})(ours, sink)
    want = torch.cat([theirs, sink.double().expand(6, 1)], 1).softmax(-1)[:, :-1]
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-6)
    slope = torch.randn_like(out)
    out.backward(slope)
    want.backward(slope.double())
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=2**-8, atol=1e-6)
    (forward,) = (graph for graph in GRAPHS if graph.kind == "forward")
    written = [value.meta["val"] for region, _ in forward.regions for value in region.outputs]
    assert sum(value.numel() > 6 for value in written) == 1  # the result


def test_on_a_gpu_what_reads_a_tensor_of_the_cpu_stays_with_torch_unless_a_factory_makes_it() -> None:
    aten, graph = torch.ops.aten, torch.fx.Graph()

    def node(made: torch.fx.Node, value: torch.Tensor) -> torch.fx.Node:
        made.meta["val"] = value
        return made

    with torch._subclasses.FakeTensorMode():
        x = node(graph.placeholder("x"), torch.empty(4, 5, device="cuda"))
        index = node(graph.placeholder("index"), torch.empty(5, dtype=torch.int64))
        number = node(graph.placeholder("number"), torch.empty(()))
        range_ = node(graph.call_function(aten.arange.start_step, (0, 5)), torch.empty(5, dtype=torch.int64))
        view = node(graph.call_function(aten.unsqueeze.default, (index, 0)), torch.empty(1, 5, dtype=torch.int64))
        twice = node(graph.call_function(aten.mul.Tensor, (number, 2)), torch.empty(()))
        taken = node(graph.call_function(aten.index.Tensor, (x, [None, range_])), torch.empty(4, 5, device="cuda"))
        left = node(graph.call_function(aten.index.Tensor, (x, [None, view])), torch.empty(4, 1, 5, device="cuda"))
        scaled = node(graph.call_function(aten.mul.Tensor, (x, number)), torch.empty(4, 5, device="cuda"))
    assert set(_on_the_cpu(graph)) == {view, twice, left} and {range_, taken, scaled}.isdisjoint(_on_the_cpu(graph))


@pytest.mark.parametrize("version", ["2.7.1", "2.6.0+cu124", "1.13.1"])
def test_an_old_torch_is_refused_by_name(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(OldTorch, match=re.escape(f"W886: torch.compile(backend=\"weft\") needs torch 2.8 or later, and this is {version}")):
        backend(torch.fx.symbolic_trace(lambda x: x), [torch.ones(3)])


def test_versions_without_a_cache_for_other_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.8 and 2.9: each process traces anew, with the same results."""
    monkeypatch.setattr("weft.frontend.backend.can_be_cached", lambda: False)
    monkeypatch.delattr("torch.fx.graph._BoxedCodeGen")
    x = torch.randn(5, 7, requires_grad=True)
    torch.compile(lambda x: (x.softmax(-1) * 2).sum(), backend=backend, options={"emulate": True})(x).backward()
    assert x.grad is not None and torch.allclose(x.grad, torch.zeros(5, 7), atol=1e-6)
    assert torch.equal(torch.compile(lambda x: x * 3, backend=backend)(x.detach()), x.detach() * 3)
