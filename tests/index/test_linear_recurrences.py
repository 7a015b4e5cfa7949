"""Linear recurrences y[k] = gate[k] * y[k-1] + x[k] along rows and columns, in both directions: scans of a state whose steps have an order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs
from lookup_cases import TYPES, declare, numbers, run

from weft import DataType, FusionDefinition
from weft.api.translate import translate_fusion
from weft.schedulers.scans import ScanParams

SHAPES = [
    ((3, 1000), 1), ((2, 4100), 1), ((5, 33), 1), ((1, 1, 7), 2), ((700, 9), 0), ((40, 64), 0), ((1, 5), 0), ((5, 1), 0), ((5, 1), 1), ((3, 50, 17), 1), ((2, 3, 4), 0),
    ((0, 5), 1), ((5, 0), 1), ((1,), 0), ((0,), 0), ((70, 513), 1),
]  # fmt: skip
LONG = [((1, 100003), 1), ((40000,), 0), ((30011, 3), 0), ((2, 40000, 3), 1)]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def step_by_step(gate: torch.Tensor, x: torch.Tensor, dim: int, reverse: bool = False) -> torch.Tensor:
    """The recurrence in float64, one element after the other; what is 0 stays 0."""
    gate, x = torch.broadcast_tensors(gate.double(), x.double())
    steps = list(zip(gate.unbind(dim), x.unbind(dim)))
    if not steps:
        return x.clone()
    y, out = torch.zeros_like(steps[0][1]), []
    for factor, added in reversed(steps) if reverse else steps:
        y = torch.where(y == 0, added, factor * y + added)
        out.append(y)
    return torch.stack(out[::-1] if reverse else out, dim)


def signs(*shape: int) -> torch.Tensor:
    """-1, 1, and seldom 0: each element counts for all behind it, and where states are combined in another order, results differ."""
    generator = torch.Generator().manual_seed(sum(shape) + 1)
    gate = 2.0 * torch.randint(0, 2, shape, generator=generator) - 1
    return torch.where(torch.rand(shape, generator=generator) < 0.0005, 0.0, gate)


def whole(*shape: int) -> torch.Tensor:
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(sum(shape) + 2)).float()


def define(fd: FusionDefinition, gate: torch.Tensor, x: torch.Tensor, dim: int, reverse: bool) -> None:
    tensors = [fd.define_tensor([-1] * t.dim(), contiguity=[True] * t.dim(), dtype=TYPES[t.dtype]) if t.is_contiguous() else declare(fd, t) for t in (gate, x)]
    fd.add_output(fd.ops.linear_recurrence(*tensors, dim, reverse))


def check(gate: torch.Tensor, x: torch.Tensor, dim: int, reverse: bool, *, is_exact: bool = False) -> FusionDefinition:
    """Compare with float64. Each step that a term passes rounds its product and its sum once, in whatever order steps are combined; the result is rounded."""
    with FusionDefinition() as fd:
        define(fd, gate, x, dim, reverse)
    with poisoned_outputs():
        (out,) = fd.execute([gate, x])
        fd.validate([gate, x])
    assert out.dtype == torch.promote_types(gate.dtype, x.dtype)
    want = step_by_step(gate, x, dim, reverse)
    if is_exact:
        assert torch.equal(out.double(), want)
    else:
        unit = 2.0**-53 if out.dtype is torch.float64 else 2.0**-24
        roundings = 2 * unit * step_by_step(gate.abs(), step_by_step(gate.abs(), x.abs(), dim, reverse), dim, reverse)
        of_result = torch.finfo(out.dtype).eps * want.abs() + torch.finfo(out.dtype).tiny
        assert out.shape == want.shape and ((out.double() - want).abs() <= roundings + of_result).all()
    if x.numel():
        assert len(fd.fec.kernel_runtimes) == 1  # type: ignore[attr-defined]
    return fd


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape, dim", SHAPES, ids=str)
def test_rows_and_columns_in_both_directions(shape: tuple[int, ...], dim: int, reverse: bool) -> None:
    check(1.1 * numbers(*shape).tanh(), numbers(*shape) + 0.5, dim, reverse)
    check(signs(*shape), whole(*shape), dim, reverse, is_exact=True)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_all_floats(dtype: torch.dtype, dim: int, reverse: bool) -> None:
    check(numbers(170, 150).sigmoid().to(dtype), numbers(170, 150).to(dtype), dim, reverse)
    check(numbers(61, 47).sigmoid().to(dtype), numbers(61, 47).to(dtype), dim, reverse)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape, dim", LONG, ids=str)
def test_blocks_that_share_a_row_keep_its_order(shape: tuple[int, ...], dim: int, dtype: torch.dtype, reverse: bool) -> None:
    fd = check(signs(*shape).to(dtype), whole(*shape).to(dtype), dim, reverse, is_exact=True)
    assert fd.fec.kernel_runtimes[0].proposal.params.blocks > 1  # type: ignore[attr-defined]


def test_more_blocks_than_threads_of_a_column() -> None:
    """A thread then takes the totals of several blocks, which must be neighbours."""
    fd = check(signs(200003, 8), whole(200003, 8), 0, False, is_exact=True)
    params = fd.fec.kernel_runtimes[0].proposal.params  # type: ignore[attr-defined]
    assert params.blocks > params.bdimy


def test_strided_rows_that_begin_anywhere() -> None:
    gate, x = (t[3:4003].reshape(50, 80)[:, 5:70] for t in (signs(5000), whole(5000)))
    for dim in (0, 1):
        check(gate, x, dim, False, is_exact=True)
        check(gate, x, dim, True, is_exact=True)
    fd = check(signs(70, 2049), whole(70, 2049), 1, True, is_exact=True)
    params = fd.fec.kernel_runtimes[0].proposal.params  # type: ignore[attr-defined]
    assert isinstance(params, ScanParams) and params.is_staged


def test_memory_that_is_not_aligned() -> None:
    gate, x = signs(3001)[1:], whole(3003)[3:]
    with FusionDefinition() as fd:
        define(fd, gate, x, 0, False)
    for a, b in ((signs(3000), whole(3000)), (gate, x)):
        with poisoned_outputs():
            (out,) = fd.execute([a, b])
        assert torch.equal(out.double(), step_by_step(a, b, 0))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_what_is_0_stays_0_under_products_that_overflow(dim: int, reverse: bool) -> None:
    """Gates of 1e30, of which two are more than a float holds, and gates that are infinite or no number, before the first value and behind a gate of 0."""
    gate, x = torch.full((300, 301), 1e30), torch.zeros(300, 301)
    gate[:, 200], gate[200] = 0.0, 0.0
    gate[3, 5], gate[7, 9] = float("inf"), float("nan")
    x[250, 250] = 1e-20
    x[20, 30] = 2.0
    with FusionDefinition() as fd:
        define(fd, gate, x, dim, reverse)
    with poisoned_outputs():
        (out,) = fd.execute([gate, x])
    want = step_by_step(gate.float(), x, dim, reverse).float()  # rounded to infinity where it is too large
    is_inf = want.isinf()
    behind = step_by_step(torch.ones_like(x), is_inf.float(), dim, reverse) > 0  # of what overflowed, the rest of the row may be no number
    assert is_inf.any() and torch.equal(out[~behind], want[~behind]) and not torch.isfinite(out[is_inf]).any()


def test_gates_that_are_broadcast() -> None:
    """One gate for all rows, one for each row, and one in all."""
    x = whole(40, 300)
    for gate in (signs(1, 300), signs(40, 1), signs(1, 1), signs(40, 1).expand(40, 300)):
        sizes, flags = [-1 if n > 1 else 1 for n in gate.shape], [None if s == 0 or n == 1 else True for n, s in zip(gate.shape, gate.stride())]
        for dim in (0, 1):
            with FusionDefinition() as fd:
                given = fd.define_tensor(shape=sizes, contiguity=flags)
                fd.add_output(fd.ops.linear_recurrence(given, declare(fd, x), dim))
                fd.add_output(fd.ops.linear_recurrence(declare(fd, x), given, dim))
            with poisoned_outputs():
                out, _ = fd.execute([gate, x, x])
                fd.validate([gate, x, x])
            assert torch.equal(out.double(), step_by_step(gate, x, dim))


def test_a_gate_that_is_a_number() -> None:
    """Discounted sums; and a number that is added in each step. 16 bits, and an axis of one element in a call, too."""
    for dtype in (torch.float32, torch.bfloat16):
        with FusionDefinition() as fd:
            t = fd.define_tensor([-1, -1], contiguity=True, dtype=TYPES[dtype])
            fd.add_output(fd.ops.linear_recurrence(0.5, t, 1, True))
            fd.add_output(fd.ops.linear_recurrence(t, 2.0, 0))
        for shape in ((7, 300), (7, 1), (1, 5)):
            x = numbers(*shape).tanh().to(dtype)
            with poisoned_outputs():
                sums, steps = fd.execute([x])
                fd.validate([x])
            assert sums.dtype == steps.dtype == dtype
            eps = torch.finfo(dtype).eps
            torch.testing.assert_close(sums.double(), step_by_step(torch.tensor(0.5).expand(shape), x, 1, True), rtol=eps, atol=4 * 2.0**-24 * 8)
            torch.testing.assert_close(steps.double(), step_by_step(x, torch.tensor(2.0).expand(shape), 0), rtol=eps, atol=4 * 2.0**-24 * 16)


def test_extents_of_one_in_a_call() -> None:
    with FusionDefinition() as fd:
        for reverse in (False, True):
            shapes = [fd.define_tensor(shape=[1, -1], contiguity=[None, None]) for _ in range(2)]
            fd.add_output(fd.ops.linear_recurrence(*(fd.ops.reshape(t, [-1]) for t in shapes), 0, reverse))
    for count in (2, 1, 5):
        gate, x = torch.full((1, 1), 3.0).expand(1, count), torch.full((1, 1), 2.0).expand(1, count)
        up, down = fd.execute([gate, x, gate, x])
        want = step_by_step(gate, x, 1)[0].float()
        assert torch.equal(up, want) and torch.equal(down, want.flip(0))


def test_work_around_it_is_in_its_kernel() -> None:
    a, x = numbers(40, 90), numbers(40, 90)
    fd = run(
        lambda fd, a, x: fd.ops.mul(fd.ops.linear_recurrence(fd.ops.sigmoid(a), fd.ops.mul(x, 0.5), 1), x), [a, x],
        step_by_step(a.double().sigmoid(), x.double() / 2, 1) * x.double(), 1e-5,
    )  # fmt: skip
    assert len(fd.fec.kernel_runtimes) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("which", ["both", "gate", "x"])
def test_between_reversals_of_both_it_begins_at_the_last_element(which: str) -> None:
    gate, x = signs(30, 700), whole(30, 700)

    def flip(fd: FusionDefinition, t: Any) -> Any:
        size = t.size(1)
        return fd.ops.index_select(t, fd.ops.iota(size, fd.ops.sub(size, 1), -1), 1)

    def between(fd: FusionDefinition, a: Any, b: Any) -> Any:
        a, b = (flip(fd, t) if which in ("both", name) else t for name, t in (("gate", a), ("x", b)))
        return flip(fd, fd.ops.linear_recurrence(a, b, 1))

    a, b = (t.flip(1) if which in ("both", name) else t for name, t in (("gate", gate), ("x", x)))
    fd = run(between, [gate, x], step_by_step(a, b, 1).flip(1))
    assert len(fd.fec.kernel_runtimes) == (1 if which == "both" else 2)  # type: ignore[attr-defined]


def test_printed_and_written_again() -> None:
    gate, x = signs(6, 50), whole(6, 50)
    with FusionDefinition() as fd:
        define(fd, gate, x, 1, True)
    text = translate_fusion(fd.fusion)
    assert "linear_recurrence(tv0, tv1, dim=1, reverse=True)" in text
    names: dict[str, Any] = {"DataType": DataType, "FusionDefinition": FusionDefinition}
    exec(text, names)
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)
    assert torch.equal(again.execute([gate, x])[0].double(), step_by_step(gate, x, 1, True))


def test_what_is_refused() -> None:
    with FusionDefinition() as fd:
        x, whole_numbers = fd.define_tensor([-1], contiguity=True), fd.define_tensor([-1], contiguity=True, dtype=DataType.Int)
        with pytest.raises(RuntimeError, match="real floating-point"):
            fd.ops.linear_recurrence(whole_numbers, x, 0)
        with pytest.raises(RuntimeError, match="no axes"):
            fd.ops.linear_recurrence(*(fd.define_tensor([], dtype=DataType.Float) for _ in range(2)), 0)
        with pytest.raises(RuntimeError, match="4"):
            fd.ops.linear_recurrence(fd.define_tensor([4], contiguity=True), fd.define_tensor([5], contiguity=True), 0)
        fd.add_output(x)


# ---------------------------------------------------------------- gradients
def gradients(op: Any, inputs: list[torch.Tensor], slope: torch.Tensor) -> list[torch.Tensor]:
    with FusionDefinition() as fd:
        fd.add_output(op(fd, *(declare(fd, t) for t in inputs)))
    given = [t.clone().requires_grad_() for t in inputs]
    with poisoned_outputs():
        out = fd.autograd()(*given)
        (out if isinstance(out, torch.Tensor) else out[0]).backward(slope)
    return [t.grad for t in given]  # type: ignore[misc]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape, dim", [((3, 1000), 1), ((170, 9), 0), ((1, 50003), 1), ((5, 1), 1), ((3, 50, 17), 1)], ids=str)
def test_gradients_of_gates_and_values(shape: tuple[int, ...], dim: int, reverse: bool) -> None:
    """Whole numbers, so that each is exact; gates of 0 among them."""
    gate, x = signs(*shape), whole(*shape)
    gate.view(-1)[::3] = 0.0
    slope = whole(*reversed(shape)).reshape(shape)
    found = gradients(lambda fd, a, b: fd.ops.linear_recurrence(a, b, dim, reverse), [gate, x], slope)
    wide = [t.double().requires_grad_() for t in (gate, x)]
    y, out = 0.0, []
    steps = list(zip(*(t.unbind(dim) for t in wide)))
    for a, b in reversed(steps) if reverse else steps:
        y = a * y + b
        out.append(y)
    torch.stack(out[::-1] if reverse else out, dim).backward(slope.double())  # type: ignore[arg-type]
    for got, t in zip(found, wide):
        assert torch.equal(got.double(), t.grad)  # type: ignore[arg-type]


def products_with_zeros(*shape: int, dim: int) -> torch.Tensor:
    """Numbers of size about 1 with no, one, two and several zeros in a row, also as its first and last element."""
    x = (0.01 * numbers(*shape)).exp() * signs(*shape).sign().where(signs(*shape) != 0, torch.ones(()))
    rows = x.movedim(dim, -1)
    size = shape[dim]
    rows = rows.reshape(-1, size).clone()
    for number, row in enumerate(rows):
        row[[[], [0], [size - 1], [size // 3], [size // 3, size // 2], [0, size // 4, size - 1], list(range(0, size, 5))][number % 7]] = 0.0
    moved = x.movedim(dim, -1).shape
    return rows.reshape(moved).movedim(-1, dim).contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape, dim", [((9, 300), 1), ((300, 9), 0), ((7, 1), 1), ((1, 20011), 1), ((3, 50, 8), 1), ((0, 4), 1), ((4, 0), 1)], ids=str)
def test_gradient_of_a_running_product_with_zeros(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    x = (products_with_zeros(*shape, dim=dim) if 0 not in shape else torch.ones(shape)).to(dtype)
    slope = numbers(*shape).to(dtype)
    (found,) = gradients(lambda fd, t: fd.ops.cumprod(t, dim), [x], slope)
    wide = x.double().requires_grad_()
    wide.cumprod(dim).backward(slope.double())
    before, behind = (torch.zeros_like(wide), torch.zeros_like(wide)) if 0 in shape else (t.detach().abs() for t in (wide.cumprod(dim).roll(1, dim), wide.roll(-1, dim)))
    before.narrow(dim, 0, min(1, shape[dim])).fill_(1.0)
    sizes = before * step_by_step(behind, slope.double().abs(), dim, True)  # of all terms
    unit = 2.0**-53 if dtype is torch.float64 else 2.0**-24
    assert found.dtype == dtype and ((found.double() - wide.grad).abs() <= (4 * shape[dim] * unit + 2 * torch.finfo(dtype).eps) * sizes).all()  # type: ignore[operator]


def test_gradient_of_a_running_product_from_a_start_on() -> None:
    x, slope = products_with_zeros(9, 60, dim=1), numbers(9, 60)
    (found,) = gradients(lambda fd, t: fd.ops.cumprod(t, 1, 3.0), [x], slope)
    wide = x.double().requires_grad_()
    (3 * wide.cumprod(1)).backward(slope.double())
    torch.testing.assert_close(found.double(), wide.grad, rtol=1e-5, atol=1e-4)
