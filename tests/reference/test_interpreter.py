"""The reference interpreter against torch called directly, in both precisions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from graphs import Graph

from weft import FusionDefinition
from weft.dtypes import DataType
from weft.reference import philox
from weft.reference.interpreter import NoGenerator, WrongArguments, evaluate
from weft.reference.tolerance import get_val_tolerances
from weft.reference.torch_types import NoSuchType, python_scalar_to_nvfuser_dtype, torch_dtype, torch_dtype_to_nvfuser_dtype

D = DataType


def only(fusion: Any, *args: Any, **options: Any) -> torch.Tensor:
    (out,) = evaluate(fusion, list(args), **options)
    return out


def test_layer_norm() -> None:
    g = Graph()
    x, weight = g.tensor([-1, -1], D.BFloat16), g.tensor([-1], D.BFloat16)
    variance, mean = g.var_mean(g.cast(x, D.Float), [1], 0, True)
    normed = g.mul(g.sub(x, mean), g.rsqrt(g.add(variance, 1e-5)))
    fusion = g.out(g.cast(g.mul(normed, weight), D.BFloat16))
    a, w = torch.randn(6, 33).bfloat16(), torch.randn(33).bfloat16()
    expected = torch.nn.functional.layer_norm(a.double(), (33,), w.double(), eps=1e-5)
    torch.testing.assert_close(only(fusion, a, w), expected, rtol=1e-12, atol=1e-12)
    native = only(fusion, a, w, precision="native")
    assert native.dtype == torch.bfloat16
    (atol, rtol) = get_val_tolerances(fusion, [a, w])[0]
    torch.testing.assert_close(native.double(), expected, rtol=rtol, atol=atol)
    assert atol < 0.02


def test_softmax_over_a_middle_axis() -> None:
    g = Graph()
    x = g.tensor([3, 4, 5])
    e = g.exp(g.sub(x, g.max(x, 1, True)))
    fusion = g.out(g.div(e, g.sum(e, 1, True)))
    a = torch.randn(3, 4, 5)
    torch.testing.assert_close(only(fusion, a), torch.softmax(a.double(), 1), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(only(fusion, a, precision="native"), torch.softmax(a, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000, 4096])
def test_a_scan_of_doubles_rounds_as_often_as_a_tree_is_deep(count: int, dim: int) -> None:
    """Added one after the other, 1 + u + u ... stays 1, for each sum is rounded down: the reference would be as far off as its number of elements."""
    roundoff = 2.0**-53
    x = torch.full((2, count), roundoff, dtype=torch.float64)
    x[:, :1] = 1.0
    g = Graph()
    found = only(g.out(g.cumsum(g.tensor([-1, -1], D.Double), dim)), x if dim else x.t().contiguous())
    found = found if dim else found.t()
    assert found.shape == x.shape
    assert (((found - 1.0) / roundoff - torch.arange(count)).abs() <= count.bit_length()).all()


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dims", [[0], [1], [0, 2], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("dtype", [D.Float, D.Int32, D.Bool], ids=lambda t: t.name)
def test_reductions(kind: str, dims: list[int], dtype: DataType) -> None:
    g = Graph()
    fusion = g.out(getattr(g, kind)(g.tensor([3, 4, 2], dtype), dims))
    a = (torch.randn(3, 4, 2) * 3).to(torch_dtype(dtype))
    expected = a.double() if dtype is D.Float else a
    if kind in ("max", "min"):
        expected = getattr(torch, f"a{kind}")(expected, dims)
    elif kind == "sum":
        expected = expected.sum(dims)
    else:
        for dim in sorted(dims, reverse=True):
            expected = expected.prod(dim)
    got = only(fusion, a)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected)


def test_reductions_over_no_elements_give_the_identity() -> None:
    g = Graph()
    x = g.tensor([3, 0])
    a = torch.zeros(3, 0)
    sums, largest = evaluate(g.out(g.sum(x, 1), g.max(x, 1)), [a])
    assert sums.tolist() == [0] * 3
    assert largest.tolist() == [-float("inf")] * 3


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("correction", [0, 1, 3, 50])
@pytest.mark.parametrize("dims", [[0], [1], [0, 1], [-1]], ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("symbolic", [False, True])
def test_var_mean_is_torchs(correction: int, dims: list[int], keepdim: bool, symbolic: bool) -> None:
    g = Graph()
    fusion = g.out(*g.var_mean(g.tensor([-1, -1] if symbolic else [7, 11]), dims, correction, keepdim), g.var(g.tensor([7, 11]), dims, correction))
    a = torch.randn(7, 11)
    got = evaluate(fusion, [a, a])
    expected = torch.var_mean(a.double(), dims or None, correction=correction, keepdim=keepdim)
    torch.testing.assert_close(got[:2], list(expected))
    torch.testing.assert_close(got[2], a.double().var(dims or None, correction=correction))


def test_a_mean_is_not_rounded_as_its_terms_are() -> None:
    """Terms of 2 and a mean near 0: the partial sums of a tree stay below 1,000, and their roundings, divided by the count, below 1e-17 each."""
    x = torch.rand(2, 9999, dtype=torch.float64) * 4 - 2
    x[0, 0] = 1.9
    g = Graph()
    average, *_ = evaluate(g.out(*g.welford(g.tensor([2, 9999], D.Double), [0, 1])), [x])
    assert abs(float(average) - math.fsum(x.flatten().tolist()) / x.numel()) < 1e-16


def test_the_mean_of_numbers_far_from_zero() -> None:
    x = torch.rand(20000, dtype=torch.float64) + 1e8
    g = Graph()
    average, *_ = evaluate(g.out(*g.welford(g.tensor([20000], D.Double), [0])), [x])
    assert abs(float(average) - math.fsum(x.tolist()) / x.numel()) <= math.ulp(1e8)


def test_welford_over_expanded_axes_counts_each_repetition() -> None:
    g = Graph()
    x = g.tensor([5, 4], expanded={0: 5})
    average, squares, count = evaluate(g.out(*g.welford(x, [0, 1])), [torch.arange(4.0).expand(5, 4)])
    assert (average.item(), squares.item(), count.item()) == (1.5, 25.0, 20)
    average, squares, count = evaluate(g.out(*g.welford(x, [0])), [torch.arange(4.0).expand(5, 4)])[3:]
    assert (average.tolist(), squares.tolist(), count.tolist()) == ([0, 1, 2, 3], [0] * 4, [5] * 4)


def test_the_mean_of_equal_elements_is_that_element() -> None:
    """A sum divided by its count is rounded; the square root of what is left would be far from 0."""
    g = Graph()
    given = torch.tensor([[0.1], [1 / 3], [float("inf")]]).expand(3, 7)
    average, squares, _ = evaluate(g.out(*g.welford(g.tensor([3, 7]), [1])), [given])
    assert torch.equal(average, given[:, 0].double()) and squares[:2].tolist() == [0.0, 0.0]


def test_sum_and_prod_over_expanded_axes() -> None:
    g = Graph()
    x = g.tensor([3, 2], expanded={0: -1})
    a = torch.tensor([1.5, -2.0]).expand(3, 2)
    sums, products, largest = evaluate(g.out(g.sum(x, 0), g.prod(x, 0), g.max(x, 0)), [a])
    assert sums.tolist() == [4.5, -6.0]
    assert products.tolist() == [1.5**3, -8.0]
    assert largest.tolist() == [1.5, -2.0]


def test_shapes() -> None:
    g = Graph()
    x = g.tensor([-1, 1, 4])
    permuted = g.permute(x, [2, 0, 1])
    squeezed = g.squeeze(x, [1])
    expanded = g.expand(x, [-1, 3, -1])
    placed = g.broadcast_in_dim(squeezed, [g.size(x, 0), 6, 4], [0, 2])
    ordered = g.stride_order(squeezed, [0, 1])
    a = torch.randn(2, 1, 4)
    got = evaluate(g.out(permuted, squeezed, expanded, placed, ordered), [a])
    expected = [a.permute(2, 0, 1), a.squeeze(1), a.expand(2, 3, 4), a.expand(2, 6, 4), a.squeeze(1)]
    for one, other in zip(got, expected):
        assert torch.equal(one, other.double())


def test_factories() -> None:
    g = Graph()
    n, fill = g.size(g.tensor([-1]), 0), g.scalar()
    made = evaluate(
        g.out(g.full([2, n], fill, D.Float), g.iota(n, 3, 2), g.iota(4, 0.5, 0.25, D.Float), g.full([2], True, D.Bool)),
        [torch.zeros(3), 2.5],
        precision="native",
    )
    assert made[0].tolist() == [[2.5] * 3] * 2
    assert made[1].tolist() == [3, 5, 7]
    assert made[1].dtype == torch.int64
    assert made[2].tolist() == [0.5, 0.75, 1.0, 1.25]
    assert made[3].tolist() == [True, True]


def test_random_ops_count_and_explicit_seeds_are_unchanged() -> None:
    g = Graph()
    seed, offset = g.scalar(D.Int), g.scalar(D.Int)
    fusion = g.out(g.uniform(0.0, 1.0, [5, 3]), g.normal(1.0, 2.0, [7], dtype=D.Double), g.uniform(-1.0, 1.0, [4], rng_seed=seed, rng_offset=offset))
    got = evaluate(fusion, [11, 3], philox=(99, 10), precision="native")
    assert np.array_equal(got[0].numpy().reshape(-1), philox.uniform(15, 99, 10))
    assert np.array_equal(got[1].numpy(), philox.normal(7, 99, 11, 1.0, 2.0, double=True))
    assert np.array_equal(got[2].numpy(), philox.uniform(4, 11, 3, -1.0, 1.0))
    if not torch.cuda.is_available():
        with pytest.raises(NoGenerator, match="philox=\\(seed, offset / 4\\)"):
            evaluate(fusion, [11, 3])


def test_scalar_inputs_and_scalar_arithmetic() -> None:
    g = Graph()
    x, s = g.tensor([-1]), g.scalar()
    factor = g.div(g.add(s, g.size(x, 0)), 2.0)
    fusion = g.out(g.mul(x, factor), factor)
    got = evaluate(fusion, [torch.ones(4), 1.0])
    assert got[0].tolist() == [2.5] * 4
    assert got[1].item() == 2.5


def test_native_precision_rounds_where_the_fusion_does() -> None:
    g = Graph()
    x = g.tensor([3], D.BFloat16)
    back = g.cast(g.cast(g.add(x, 1e-3), D.BFloat16), D.Float)
    fusion = g.out(back)
    a = torch.ones(3).bfloat16()
    assert only(fusion, a, precision="native").tolist() == [1.0] * 3
    assert abs(only(fusion, a)[0].item() - 1.001) < 1e-12


def test_composites() -> None:
    g = Graph()
    x, y, z = (g.tensor([4]) for _ in range(3))
    fusion = g.out(g.addcmul(x, y, z, 0.5), g.lerp(x, y, 0.25), g.clamp(x, -0.5, 0.5), g.threshold(x, 0.0, 9.0), g.where(g.gt(x, 0.0), y, z))
    a, b, c = (torch.randn(4, dtype=torch.float64) for _ in range(3))
    got = evaluate(fusion, [a, b, c])
    expected = [torch.addcmul(a, b, c, value=0.5), torch.lerp(a, b, 0.25), a.clamp(-0.5, 0.5), torch.threshold(a, 0.0, 9.0), torch.where(a > 0, b, c)]
    for one, other in zip(got, expected):
        torch.testing.assert_close(one, other)


def test_aliased_outputs_are_left_out_unless_asked_for() -> None:
    g = Graph()
    x = g.tensor([3])
    y = g.add(x, 1.0)
    g.fusion.add_output(y, x)
    assert evaluate(g.fusion, [torch.zeros(3)]) == []
    assert len(evaluate(g.fusion, [torch.zeros(3)], hidden=True)) == 1


def test_a_clone_computes_the_same() -> None:
    g = Graph()
    fusion = g.out(g.sum(g.exp(g.tensor([-1, 4])), 1))
    a = torch.randn(3, 4)
    assert torch.equal(only(fusion, a), only(fusion.clone()[0], a))


def test_the_number_of_arguments_is_checked() -> None:
    with pytest.raises(WrongArguments, match="the fusion has 1 inputs; 2 arguments were given"):
        g = Graph()
        evaluate(g.out(g.exp(g.tensor([3]))), [torch.ones(3), 1])


# ---------------------------------------------------------------- tolerances and types
def test_tolerances_grow_with_reductions_and_are_zero_for_integers() -> None:
    def tolerance(size: int, dtype: DataType) -> tuple[float, float]:
        g = Graph()
        return get_val_tolerances(g.out(g.sum(g.tensor([4, -1], dtype), 1)), [torch.zeros(4, size).to(torch_dtype(dtype))])[0]

    assert tolerance(16, D.Float)[0] < tolerance(4096, D.Float)[0] < 1e-4
    assert tolerance(4096, D.Double)[0] < 1e-11
    assert tolerance(4096, D.Int) == (0.0, 0.0)


def test_a_product_over_one_element_is_rounded() -> None:
    g = Graph()
    fusion = g.out(g.matmul(g.tensor([3, 1]), g.tensor([1, 2])))
    a, b = torch.rand(3, 1), torch.rand(1, 2)
    (atol, rtol) = get_val_tolerances(fusion, [a, b])[0]
    torch.testing.assert_close((a @ b).double(), a.double() @ b.double(), rtol=rtol, atol=atol)
    assert 0 < atol < 1e-5


def test_types_map_both_ways() -> None:
    for dtype in (D.Double, D.Float, D.Half, D.BFloat16, D.Int, D.Int32, D.Bool, D.ComplexFloat, D.ComplexDouble, D.Float8_e4m3fn, D.Float8_e5m2):
        assert torch_dtype_to_nvfuser_dtype(torch_dtype(dtype)) is dtype
    assert [python_scalar_to_nvfuser_dtype(v) for v in (True, 1, 1.0, 1j)] == [D.Bool, D.Int, D.Double, D.ComplexDouble]
    assert torch_dtype_to_nvfuser_dtype(float) is D.Double
    with pytest.raises(NoSuchType, match="torch.int16 has no counterpart"):
        torch_dtype_to_nvfuser_dtype(torch.int16)


def test_a_running_product_along_an_expanded_axis_has_an_element_for_each_repetition() -> None:
    g = Graph()
    fusion = g.out(g.cumprod(g.tensor([4, 1], expanded={1: 4}), 1))
    a = torch.randn(4, 1).expand(4, 4)
    torch.testing.assert_close(only(fusion, a), a.double().cumprod(1))


def test_a_moved_float_of_8_bits_keeps_its_infinity() -> None:
    """A cast to Float8_e5m2 saturates; a reshape moves bits."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, 2], contiguity=True, dtype=DataType.Float8_e5m2)
        fd.add_output(fd.ops.reshape(x, [4]))
        fd.add_output(fd.ops.cast(fd.ops.cast(x, DataType.Float), DataType.Float8_e5m2))
    inputs = [torch.tensor([[float("inf"), 1.0], [-float("inf"), 2.0]]).to(torch.float8_e5m2)]
    moved, rounded = evaluate(fd.fusion, inputs)
    assert moved.tolist() == [float("inf"), 1.0, -float("inf"), 2.0] and rounded.flatten().tolist() == [57344.0, 1.0, -57344.0, 2.0]
    fd.validate(inputs)
