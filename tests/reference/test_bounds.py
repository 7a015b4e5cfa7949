"""Bounds of errors: right results in float32, summed in any order, keep them; planted mistakes do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.api.validation import check_outputs, kept_inputs
from weft.reference.bounds import Bounded, evaluate_with_bounds

D = DataType


def defined(define: Callable[[FusionDefinition], None]) -> Any:
    with FusionDefinition() as fd:
        define(fd)
    return fd.fusion


def tensor(fd: FusionDefinition, rank: int = 2, dtype: DataType = D.Float) -> Any:
    return fd.define_tensor(shape=[-1] * rank, contiguity=True, dtype=dtype)


def column_sums(fd: FusionDefinition) -> None:
    fd.add_output(fd.ops.sum(tensor(fd), 0))


def only(fusion: Any, *inputs: Any) -> Bounded:
    (found,) = evaluate_with_bounds(fusion, list(inputs))
    return found


def in_blocks(x: torch.Tensor, serial: int, apart: bool) -> torch.Tensor:
    """Return sums over axis 0 in x's own type: `serial` terms after one another, neighbours or far apart, then a tree."""
    count = -(-len(x) // serial)
    padded = torch.cat([x, x.new_zeros(count * serial - len(x), x.shape[1])])
    level = torch.zeros(count, x.shape[1])
    for terms in padded.view(serial, count, -1) if apart else padded.view(count, serial, -1).transpose(0, 1):
        level = level + terms
    level = torch.cat([level, level.new_zeros((1 << (count - 1).bit_length()) - count, x.shape[1])])
    while len(level) > 1:
        level = level[: len(level) // 2] + level[len(level) // 2 :]
    return level[0]


def along(x: torch.Tensor) -> torch.Tensor:
    """Return running sums over axis 0 in x's own type, each from the one before (torch's own are carried in float64)."""
    out, last = torch.empty_like(x), torch.zeros_like(x[0])
    for place, terms in enumerate(x):
        last = last + terms
        out[place] = last
    return out


DATA: dict[str, Callable[[int, int], torch.Tensor]] = {
    "normal": torch.randn,
    "positive": torch.rand,
    "constant": lambda n, m: (0.1 + 0.1 * torch.rand(m)).expand(n, m).clone(),
    "few values": lambda n, m: torch.randint(-5, 6, (n, m)) * 0.1,
    "ordered": lambda n, m: torch.randn(n, m).sort(0)[0],
    "of alternating sign": lambda n, m: (1 + torch.rand(n, m)) * (1 - 2 * (torch.arange(n)[:, None] % 2)),
    "of very different sizes": lambda n, m: torch.randn(n, m) ** 9,
}


@pytest.mark.parametrize("kind", DATA)
def test_right_sums_in_any_order_are_right(kind: str) -> None:
    """Errors have a standard deviation of about 1/15 of the bound. Four terms by chance have partial sums near zero."""
    fusion = defined(column_sums)
    for seed in range(3):
        torch.manual_seed(seed)
        for n, m in ((1, 9), (2, 50), (4, 20_000), (33, 300), (1000, 50), (4099, 17), (60001, 2)):
            x = DATA[kind](n, m)
            found = only(fusion, x)
            for serial in {min(serial, n) for serial in (1, 8, 128, 1024)}:
                for apart in (True, False):
                    error = (in_blocks(x, serial, apart).double() - found.value).abs()
                    assert bool((error <= 0.7 * found.bound).all()), (n, serial, apart)


@pytest.mark.parametrize("kind", ["normal", "positive"])
def test_sums_of_millions_are_right(kind: str) -> None:
    x = DATA[kind](3_000_001, 1)
    found = only(defined(column_sums), x)
    for serial in (64, 1024):
        assert bool(((in_blocks(x, serial, True).double() - found.value).abs() <= 0.5 * found.bound).all())


@pytest.mark.parametrize(("kind", "visible"), [("normal", 3e-3), ("positive", 0.08)])
def test_a_dropped_or_doubled_element_of_a_row_of_100_000_is_found(kind: str, visible: float) -> None:
    """visible: the bound, in parts of a usual term. Of terms of one sign the sum is 10^5 terms with a roundoff of 6e-8 of it each time, so about 0.006 terms."""
    fusion = defined(lambda fd: fd.add_output(fd.ops.sum(tensor(fd), 1)))
    torch.manual_seed(3)
    x = DATA[kind](6, 100_000)
    right = in_blocks(x.t().contiguous(), 100, True)
    kept = kept_inputs(fusion, [x])
    check_outputs(fusion, [right], kept, None)
    found = only(fusion, x)
    assert found.bound.max() < visible
    for sign in (-1, 1):
        for place in (0, 77_777, 99_999):
            wrong = right + sign * x[:, place]
            hidden = x[:, place].abs() < 2 * found.bound
            assert bool(((wrong.double() - found.value).abs() > found.bound)[~hidden].all()) and hidden.float().mean() < 0.4
            with pytest.raises(AssertionError, match="of 6 elements differ; the worst"):
                check_outputs(fusion, [wrong], kept, None)


def test_a_wrong_combination_and_a_missing_tail_are_found() -> None:
    fusion, x = defined(column_sums), torch.randn(4099, 37)
    kept, right = kept_inputs(fusion, [x]), in_blocks(x, 16, True)
    check_outputs(fusion, [right], kept, None)
    for wrong in (x[:4096].sum(0), right.roll(1), torch.maximum(x[:2048].sum(0), x[2048:].sum(0)), right.bfloat16().float()):
        with pytest.raises(AssertionError, match="of 37 elements differ"):
            check_outputs(fusion, [wrong], kept, None)


def running(fd: FusionDefinition) -> None:
    x, column = tensor(fd), tensor(fd, 1)
    fd.add_output(fd.ops.cumsum(fd.ops.add(x, fd.ops.broadcast_in_dim(column, shape=x.shape(), broadcast_dims=[1])), 0))


def test_right_running_sums_are_right_and_a_dropped_term_is_found() -> None:
    fusion = defined(running)
    for seed in range(2):
        torch.manual_seed(seed)
        for n, m in ((1, 5), (2, 1000), (100, 200), (3001, 30)):
            x, column = torch.randn(n, m), torch.randn(m)
            found = only(fusion, x, column)
            for padded in (n, 64):  # in order, and in blocks with what they carry
                whole = torch.cat([x + column, torch.zeros(-n % padded, m)]).view(-1, padded, m)
                within = along(whole.transpose(0, 1)).transpose(0, 1)
                carried = along(within[:, -1]) - within[:, -1] if len(within) == 1 else torch.cat([torch.zeros(1, m), along(within[:, -1])[:-1]])
                right = (within + carried[:, None]).flatten(0, 1)[:n]
                assert bool(((right.double() - found.value).abs() <= 0.7 * found.bound).all())
    wrong = right.clone()
    wrong[1500:] -= x[1500] + column
    assert bool(((wrong.double() - found.value).abs() > found.bound)[1500:].float().mean() > 0.95)


def layer_norm_backward(fd: FusionDefinition) -> None:
    x, g, inverse, mean = tensor(fd), tensor(fd), *(fd.define_tensor(shape=[-1, 1], contiguity=[True, None]) for _ in range(2))
    normed = fd.ops.mul(fd.ops.sub(x, mean), inverse)
    fd.add_output(fd.ops.sum(fd.ops.mul(g, normed), [0]))


def test_column_sums_of_products_are_right_and_a_dropped_row_is_found() -> None:
    fusion = defined(layer_norm_backward)
    for seed in range(2):
        torch.manual_seed(seed)
        x, g, inverse, mean = torch.randn(4096, 30), torch.randn(4096, 30), torch.randn(4096, 1).abs() + 0.5, torch.randn(4096, 1).abs() + 0.5
        terms, kept = g * ((x - mean) * inverse), kept_inputs(fusion, [x, g, inverse, mean])
        for serial in (1, 31, 512):
            check_outputs(fusion, [in_blocks(terms, serial, True)], kept, None)
        (found,) = evaluate_with_bounds(fusion, kept.values)
        assert found.bound.max() < 0.01 * terms.square().mean().sqrt()
        with pytest.raises(AssertionError, match="elements differ"):
            check_outputs(fusion, [in_blocks(terms[1:], 31, True)], kept, None)


def test_references_of_the_caller_may_have_errors_of_the_same_size() -> None:
    fusion, x = defined(column_sums), torch.rand(100_000, 2)
    kept, right = kept_inputs(fusion, [x]), in_blocks(x, 1024, True)
    check_outputs(fusion, [right], kept, [in_blocks(x, 1, True)])
    with pytest.raises(AssertionError, match="2 of 2 elements differ"):
        check_outputs(fusion, [right + 1], kept, [right])


def test_a_comparison_may_turn_where_rounding_decides() -> None:
    """x * 3 / 3 is x or its neighbour; 0.1 is rounded."""

    def define(fd: FusionDefinition) -> None:
        x = tensor(fd, 1)
        fd.add_output(fd.ops.gt(fd.ops.div(fd.ops.mul(x, 3.0), 3.0), x))
        fd.add_output(fd.ops.gt(x, 0.1))

    x = torch.tensor([0.1, 0.2, 0.3, 1.0, -0.7])
    third, tenth = evaluate_with_bounds(defined(define), [x])
    assert third.bound.tolist() == [1, 1, 1, 1, 1] and tenth.bound.tolist() == [1, 0, 0, 0, 0]


def test_a_square_of_a_difference_of_equal_products() -> None:
    """A kernel may compute x * s - x * s by one rounding fewer than the other: the difference is that rounding, and its square is no error."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=[None, True])
        scaled = fd.ops.mul(x, fd.ops.truediv(1.0, fd.ops.size(x, 0)))
        first = fd.ops.index_select(scaled, fd.ops.argmax(x, -2, False), 1)
        fd.add_output(fd.ops.smooth_l1_loss(first, scaled, "none"))
    fd.validate([torch.randn(1, 9, generator=torch.Generator().manual_seed(3)).expand(17, 9)])


def test_what_is_exact_has_no_bound() -> None:
    def define(fd: FusionDefinition) -> None:
        x, n = tensor(fd, 1), tensor(fd, 1, D.Int)
        for made in (fd.ops.relu(x), fd.ops.neg(x), fd.ops.max(x, 0), fd.ops.add(n, n), fd.ops.sum(n, 0), fd.ops.where(fd.ops.gt(x, 0.0), x, 0.0)):
            fd.add_output(made)

    for found in evaluate_with_bounds(defined(define), [torch.randn(50), torch.arange(50)]):
        assert found.bound is None or not bool(found.bound.any())


def test_numbers_beyond_a_type_are_undecided_only_on_the_way() -> None:
    """exp(100) is infinite in Float, so 1 / exp(100) may be 0; as an output it has to be infinite."""

    def define(fd: FusionDefinition) -> None:
        e = fd.ops.exp(tensor(fd, 1))
        fd.add_output(e)
        fd.add_output(fd.ops.reciprocal(e))

    fusion, x = defined(define), torch.tensor([100.0, 1.0])
    kept, right = kept_inputs(fusion, [x]), [x.exp(), 1 / x.exp()]
    check_outputs(fusion, right, kept, None)
    with pytest.raises(AssertionError, match="output 0"):
        check_outputs(fusion, [torch.tensor([3e38, math.e]), right[1]], kept, None)


def test_narrow_codes_may_change_only_at_the_middle_between_two() -> None:
    """4 / 3 * 0.75 is near 1; 1.0625 lies between 1 and 1.125 of e4m3."""

    def define(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.cast(fd.ops.mul(fd.ops.div(tensor(fd, 1), 3.0), 3.0), D.Float8_e4m3fn))

    found = only(defined(define), torch.tensor([1.0625, 1.0, 1.03]))
    assert [bool(b) for b in found.bound] == [True, False, False] and found.bound[0] == 0.125


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1)], ids=str)
def test_sums_of_nothing_and_of_one(shape: tuple[int, int]) -> None:
    def define(fd: FusionDefinition) -> None:
        x = tensor(fd)
        for made in (fd.ops.sum(x, 0), fd.ops.sum(x, [0, 1]), fd.ops.cumsum(x, 0), fd.ops.cumprod(x, 1), *fd.ops.var_mean(x, [1], 0)):
            fd.add_output(made)

    x = torch.randn(shape)
    for found in evaluate_with_bounds(defined(define), [x]):
        assert found.bound is None or found.bound.shape == found.value.shape


def test_the_work_is_linear_in_the_size_of_the_fusion(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.reference import bounds

    calls: list[int] = []
    monkeypatch.setattr(bounds, "_apart", lambda a, b, real=bounds._apart: (calls.append(1), real(a, b))[1])

    def evaluations(length: int) -> int:
        def define(fd: FusionDefinition) -> None:
            x = tensor(fd, 1)
            for _ in range(length):
                x = fd.ops.mul(fd.ops.add(x, x), 0.3)
            fd.add_output(x)

        calls.clear()
        evaluate_with_bounds(defined(define), [torch.randn(3)])
        return len(calls)

    assert 0 < evaluations(20) <= 20 * 8 and evaluations(40) < 2.2 * evaluations(20)


def specials(fd: FusionDefinition) -> None:
    x = tensor(fd)
    for made in (fd.ops.sum(x, 1), fd.ops.exp(x), fd.ops.mul(x, 0.3), fd.ops.prod(x, 1), *fd.ops.var_mean(x, [1], 0), fd.ops.cumsum(x, 1), fd.ops.max(x, 1)):
        fd.add_output(fd.ops.mul(made, 0.7))


def test_what_is_infinite_or_no_number_has_to_be_the_same() -> None:
    """A bound in parts of an infinite result would allow every number."""
    fusion, x = defined(specials), torch.tensor([[1.0, float("inf"), 2.0], [1.0, float("nan"), 0.0], [3.0, -float("inf"), 1.0]])
    found = evaluate_with_bounds(fusion, [x])
    for place, f in enumerate(found):
        special = ~f.value.isfinite()
        assert bool(special.any()) and bool((f.bound[special] < 1e-3).all())
        right = [g.value.float() for g in found]
        check_outputs(fusion, right, kept_inputs(fusion, [x]), None)
        right[place] = torch.where(special, 5.0, right[place])
        with pytest.raises(AssertionError, match=f"output {place}, .* is 5.0 instead of"):
            check_outputs(fusion, right, kept_inputs(fusion, [x]), None)


def test_results_of_every_type_have_bounds() -> None:
    """torch has no magnitude of Bool and UInt64."""

    def define(fd: FusionDefinition) -> None:
        x, i, b = tensor(fd), tensor(fd, 2, D.Int), tensor(fd, 2, D.Bool)
        fd.add_output(fd.ops.scatter(b, i, b, 1))
        fd.add_output(fd.ops.topk(x, 2)[1])
        fd.add_output(fd.ops.argmin(fd.ops.mul(x, 0.3), 1))

    x = torch.rand(3, 4)
    for f in evaluate_with_bounds(defined(define), [x, torch.randint(0, 4, (3, 4)), x > 0.5]):
        assert f.bound is None or f.bound.shape == f.value.shape
