"""Arguments that a graph changes are written by the kernels of regions, or in part by torch's ops, wherever nothing reads the old values afterwards.

Each program runs compiled (strict, in the emulator with its checks) and in eager torch, several calls, and must leave equal arguments and return equal results.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from weft.frontend.backend import GRAPHS, backend


def _compiled(function: Callable[..., object], **options: bool) -> Callable[..., object]:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, dynamic=False, options={"emulate": True, "strict": True, **options})



def _check(function: Callable[..., object], make: Callable[[], list[torch.Tensor]], calls: int = 4, **options: bool) -> None:
    """Compare `calls` calls with eager float64, argument by argument and result by result."""
    fast = _compiled(function, **options)
    given = make()
    wanted = [v.double() if v.is_floating_point() else v.clone() for v in given]
    with torch.no_grad():
        for _ in range(calls):
            made, want = fast(*given), function(*wanted)
            for a, b in zip([*given, *_flat(made)], [*wanted, *_flat(want)], strict=True):
                torch.testing.assert_close(a.double(), b.double(), rtol=1e-5, atol=1e-5)
                assert a.shape == b.shape


def _flat(value: object) -> list[torch.Tensor]:
    return [] if value is None else [value] if isinstance(value, torch.Tensor) else list(value)  # type: ignore[call-overload]


def _updates() -> int:
    return sum(len(call.region.updates) for graph in GRAPHS for call in graph.calls)


def _copies() -> int:
    """Copies into arguments that torch makes."""
    return sum(times for graph in GRAPHS for op, (times, _) in graph.torch_ops.items() if "copy_" in op)


SHAPES = [(33, 65), (1, 257), (257, 1), (4, 3, 5)]


def _pair(*shape: int) -> Callable[[], list[torch.Tensor]]:
    return lambda: [torch.randn(shape) for _ in range(2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("debug", [False, True])
def test_an_update_is_written_by_its_kernel(shape: tuple[int, ...], debug: bool) -> None:
    def step(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        p.mul_(0.9).add_(g, alpha=0.1)
        return p * 2

    _check(step, _pair(*shape), debug=debug)
    assert (_updates(), _copies()) == (1, 0)


def test_readers_of_the_old_value_come_first() -> None:
    def step(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        norm = p.square().sum().sqrt()
        product = p @ g.t()
        p.add_(torch.softmax(g, -1))
        return product + norm

    _check(step, _pair(24, 40))
    assert (_updates(), _copies()) == (1, 0)


def test_a_product_with_the_new_value_reads_it() -> None:
    def step(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        old = p @ g.t()
        p.add_(g)
        return old - p @ g.t()

    _check(step, _pair(24, 40))


OLD_VALUES: dict[str, Callable[..., object]] = {
    "a copy": lambda p, g: (p.clone(), p.add_(g)),
    "a copy of a view": lambda p, g: (p.t().clone(), p.mul_(g)),
    "a row": lambda p, g: (p[0].clone(), p.zero_(), g * 2),
    "two copies": lambda p, g: (p.clone(), g.clone(), p.add_(1), g.copy_(p)),
    "a copy that the other argument gets": lambda p, g: (kept := p.clone(), p.copy_(g), g.copy_(kept)),
}


@pytest.mark.parametrize("name", OLD_VALUES)
def test_a_copy_of_the_old_value_is_made_before_the_update(name: str) -> None:
    _check(lambda p, g: tuple(v.clone() if v is p or v is g else v for v in OLD_VALUES[name](p, g)), _pair(12, 12))  # type: ignore[attr-defined]


def test_two_arguments_change_places() -> None:
    def step(a: torch.Tensor, b: torch.Tensor) -> None:
        kept = a * 1.5
        a.copy_(b * 0.5)
        b.copy_(kept)

    _check(step, _pair(9, 130))


def test_an_update_whose_readers_need_it_stays_a_copy() -> None:
    def step(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        new = torch.tanh(p) + g
        late = (new @ g.t()).sum() + (p @ g.t())
        late = torch.relu(late) * (p.sum() + (new @ new.t()).sum())  # reads the old value behind a product of the new one
        p.copy_(new)
        return late

    _check(step, _pair(12, 20))


def test_a_result_that_is_returned_has_memory_of_its_own() -> None:
    def step(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        new = p + g
        p.copy_(new)
        return new

    fast = _compiled(step)
    p, g = torch.randn(8, 64), torch.randn(8, 64)
    with torch.no_grad():
        made = fast(p, g)
        kept = made.clone()  # type: ignore[attr-defined]
        p.zero_()
    torch.testing.assert_close(made, kept, rtol=0, atol=0)


def test_arguments_that_overlap_are_right() -> None:
    def step(p: torch.Tensor, g: torch.Tensor) -> None:
        p.add_(g)

    def overlapping() -> list[torch.Tensor]:
        return [torch.randn(40, 33) for _ in range(2)]

    _check(step, overlapping)
    fast = _compiled(step)
    whole, again = (torch.arange(300, dtype=torch.float32) for _ in range(2))
    with torch.no_grad():
        for _ in range(5):
            fast(whole[1:257], whole[0:256])
            step(again[1:257], again[0:256].clone())
    torch.testing.assert_close(whole, again, rtol=0, atol=0)


def test_strided_and_narrow_arguments() -> None:
    def step(p: torch.Tensor, g: torch.Tensor, n: torch.Tensor) -> None:
        p.mul_(g)
        n.add_(1)

    for p in (torch.randn(33, 20).t(), torch.randn(40, 66)[::2, ::2], torch.randn(8, 20, dtype=torch.bfloat16)):
        fast = _compiled(step)
        g, n = torch.rand(p.shape) + 0.5, torch.tensor(0)
        want, wide = p.double(), g.double()
        with torch.no_grad():
            for _ in range(4):
                fast(p, g, n)
                want = (want * wide).to(p.dtype).double()
        torch.testing.assert_close(p.double(), want, rtol=2**-6 if p.dtype is torch.bfloat16 else 1e-5, atol=1e-5)
        assert int(n) == 4


def test_a_slice_of_a_cache_is_written_alone() -> None:
    def step(cache: torch.Tensor, key: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        cache[:, :, 5:6] = key * 2
        cache2 = torch.softmax(cache.float(), -1)
        return cache2.sum(2) + place

    _check(step, lambda: [torch.randn(2, 3, 9, 16), torch.randn(2, 3, 1, 16), torch.tensor([1.0])])
    assert _copies() == 0
    assert sum("slice_scatter" in op for graph in GRAPHS for op in graph.torch_ops) == 1


def test_rows_of_a_cache_by_index_are_written_in_place() -> None:
    def step(cache: torch.Tensor, key: torch.Tensor, place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = cache.sum()
        cache.index_copy_(1, place, torch.sigmoid(key))
        return cache.square().sum(1), before

    _check(step, lambda: [torch.randn(2, 9, 16), torch.randn(2, 2, 16), torch.tensor([3, 7])])
    assert _copies() == 0


def test_values_that_come_from_the_cache_itself() -> None:
    def step(cache: torch.Tensor, key: torch.Tensor) -> None:
        cache[:, 1:] = cache[:, :-1].clone()
        cache[:, 0] = key

    _check(step, lambda: [torch.randn(3, 17), torch.randn(3)])


def test_running_statistics_of_a_batch_norm_in_training() -> None:
    torch.manual_seed(0)
    eager = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5), torch.nn.ReLU()).double()
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5), torch.nn.ReLU())
    model.load_state_dict(eager.state_dict())
    fast = _compiled(model)
    for _ in range(4):
        x = torch.randn(4, 3, 9, 9)
        fast(x).square().mean().backward()  # type: ignore[attr-defined]
        eager(x.double()).square().mean().backward()
    for (name, a), (_, b) in zip(model.state_dict().items(), eager.state_dict().items(), strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-5, atol=1e-5, msg=name)
    for a, b in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad.double(), b.grad, rtol=1e-4, atol=1e-5)  # type: ignore[union-attr]


def test_a_saved_argument_that_changes_is_seen_by_autograd() -> None:
    def step(p: torch.Tensor) -> None:
        p.mul_(2)

    fast = _compiled(step)
    p = torch.randn(4, 64)
    w = torch.randn(4, 64, requires_grad=True)
    loss = (w * p).sum()
    with torch.no_grad():
        for _ in range(4):
            fast(p)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("function", [lambda x: (x.sigmoid() * x.add_(1), x), lambda x: (x.masked_fill_(x > 0, 0.5), x.copy_(x.softmax(-1)))])
def test_what_the_backward_needs_is_not_an_argument_that_changes(function: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> None:
    """The sigmoid, not the old argument of which the backward could compute it again."""
    fast, leaf = _compiled(function), torch.randn(5, 33, requires_grad=True)
    for _ in range(3):
        exact = leaf.detach().double().requires_grad_()
        argument, wanted = leaf * 1, exact * 1
        made, want = fast(argument), function(wanted)
        slope = torch.randn(5, 33)
        (got,) = torch.autograd.grad(made[0] * slope + argument, leaf, torch.ones(5, 33))  # type: ignore[index]
        torch.testing.assert_close(got.double(), torch.autograd.grad(want[0] * slope + wanted, exact, torch.ones(5, 33))[0], rtol=1e-5, atol=1e-5)


def _to_codes(p: torch.Tensor, codes: torch.Tensor) -> None:
    """As of an optimizer that keeps its state in 8 bits: groups of a row get codes, which lie in a row again."""
    groups = p.view(-1, 11)
    codes.copy_((groups / groups.abs().amax(1, keepdim=True) * 127).round().to(codes.dtype).view(-1))


VALUES: dict[str, tuple[Callable[..., object], Callable[[], list[torch.Tensor]]]] = {
    "a view": (_to_codes, lambda: [torch.randn(33), torch.zeros(33, dtype=torch.int8)]),
    "an axis of one": (lambda x, m: (m.copy_(x.mean(1)[:, None]), None)[1], lambda: [torch.randn(30, 11), torch.randn(30, 1)]),
    "a repeated number": (lambda x, m: (m.copy_(x.mean(1)[:, None]), None)[1], lambda: [torch.randn(30, 11), torch.randn(30, 11)]),
    "a row": (lambda x, m: (m.copy_((x * 2).cumsum(0)[-1]), None)[1], lambda: [torch.randn(30, 11), torch.randn(11)]),
    "two arguments": (lambda x, m, n: (m.copy_(x.mean(0)), n.copy_(m), None)[2], lambda: [torch.randn(30, 11), torch.randn(11), torch.randn(11)]),
    "a result, too": (lambda x, m: (a := x.mean(0), m.copy_(a))[0], lambda: [torch.randn(30, 11), torch.randn(11)]),
    "a copy of it": (lambda x, m: m.mul_(0.9).add_(x.mean(0), alpha=0.1).clone(), lambda: [torch.randn(30, 11), torch.randn(11)]),
    "gaps in memory": (lambda x, m: (a := x.sin(), m[:, ::2].copy_(a))[0], lambda: [torch.randn(5, 11), torch.randn(5, 22)]),
    "a view that is a result, too": (lambda x, m: (a := x.sin().view(-1), m.copy_(a))[0], lambda: [torch.randn(6, 11), torch.randn(66)]),
}
"""What is copied into an argument that no result of the graph shows."""


@pytest.mark.parametrize("sizes", [(), (1,), (7,)], ids=str)
def test_a_number_is_copied_into_an_argument_whatever_else_is_computed(sizes: tuple[int, ...]) -> None:
    """A mark that something has been done: no kernel writes it, and the others are kernels still."""

    def step(x: torch.Tensor, done: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        m.copy_(torch.where(done.sum() == 0, x.mean(0), m))
        done.mul_(2)
        seen = done.clone()
        done.fill_(1)
        return x - m + seen.sum()

    _check(step, lambda: [torch.randn(30, 11), torch.zeros(sizes), torch.randn(11)])
    assert _updates() == 1 and sum(len(graph.calls) for graph in GRAPHS) > 0


@pytest.mark.parametrize("name", VALUES)
def test_new_values_that_are_views_or_needed_elsewhere(name: str) -> None:
    function, make = VALUES[name]
    _check(function, make)
    assert _copies() == 0


def test_a_value_that_waits_for_its_reader_is_copied() -> None:
    """The old value is needed behind the product, and the product behind the new value: no kernel can write it."""

    def step(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        new = x.sin()
        out = (new @ x) * m
        m.copy_(new.view(-1).view(m.shape))
        return out

    _check(step, _pair(12, 12))
    assert (_updates(), _copies()) == (0, 1)


SHOWN: dict[str, Callable[..., object]] = {
    "a part that is written": lambda p, g: p[:, 1:3].copy_(g[:, 1:3]),
    "more than is written": lambda p, g: (p[:, 1:3].copy_(g[:, 1:3]), p[:, :4])[1],
    "everything in another order": lambda p, g: p.mul_(0.5).add_(g).t(),
    "rows": lambda p, g: (p.relu_(), p[1:].mul_(2), p[1:].t(), p[0])[2:],
    "with a sum": lambda p, g: (p.mul_(0.5).add_(g), p.sum(0), p[1:])[1:],
}
"""Results that are views of an argument with a new value."""


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("offset", [0, 3])
def test_results_that_show_an_argument(name: str, offset: int) -> None:
    """They are the caller's memory, also of a tensor that begins within a larger one; nothing is copied."""

    def run(function: Callable[..., object], base: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
        p = base[offset : offset + 48].view(6, 8)
        with torch.no_grad():
            made = _flat(function(p, g))
        for view in made:
            if view.dim() < 2 and name == "with a sum":
                continue
            assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
        return made

    fast = _compiled(SHOWN[name])
    base = torch.randn(60)
    other = base.double()
    for _ in range(3):
        g = torch.randn(6, 8)
        for a, b in zip(run(fast, base, g), run(SHOWN[name], other, g.double()), strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)
            assert a.stride() == b.stride() and (a.storage_offset() == b.storage_offset() or a.dim() < 2)
        torch.testing.assert_close(base.double(), other, rtol=1e-5, atol=1e-5)
    assert _copies() == 0


def test_a_copy_of_what_an_argument_gets_is_no_view_of_it() -> None:
    def step(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        new = (p * 0.5 + g).contiguous()
        p.copy_(new)
        return new[1:]

    fast, p = _compiled(step), torch.randn(6, 8)
    made = fast(p, torch.randn(6, 8))
    assert isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() != p.untyped_storage().data_ptr()
    assert torch.equal(made, p[1:])
