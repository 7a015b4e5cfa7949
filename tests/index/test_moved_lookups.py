"""Lookups of what is computed: they move up to inputs, so that a definition is one kernel; the values are torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lookup_cases import TYPES, numbers, places
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.graph.lookups import move_lookups_up
from weft.ir.graph_ops import LookupOp

F32 = DataType.Float


def check(define: Callable[..., Any], inputs: list[torch.Tensor], wanted: torch.Tensor, kernels: int = 1, tolerance: float = 1e-6) -> FusionDefinition:
    """Execute a definition over inputs with symbolic sizes; compare with `wanted` and count its kernels."""
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor([-1] * x.dim(), contiguity=[True] * x.dim(), dtype=TYPES[x.dtype]) for x in inputs]
        fd.add_output(define(fd, *tensors))
    with poisoned_outputs():
        result = fd.execute(inputs)[0]
        fd.validate(inputs)
    assert result.shape == wanted.shape
    torch.testing.assert_close(result.double(), wanted.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
    assert len(fd.fec.kernel_runtimes) == kernels  # type: ignore[attr-defined]
    return fd


def double(fd: FusionDefinition, x: Any) -> Any:
    return fd.ops.add(fd.ops.mul(fd.ops.cast(x, F32), 2.0), 1.0)


@pytest.mark.parametrize("width", [16, 24, 7])
def test_rotary_embedding_is_one_kernel(width: int) -> None:
    x, c, s = numbers(2, 3, 10, 2 * width), numbers(10, 2 * width), numbers(11, 2 * width)[1:].contiguous()

    def define(fd: FusionDefinition, x: Any, c: Any, s: Any) -> Any:
        low = fd.ops.slice(x, start_indices=[0, 0, 0, 0], end_indices=[2, 3, 10, width])
        high = fd.ops.slice(x, start_indices=[0, 0, 0, width], end_indices=[2, 3, 10, 2 * width])
        turned = fd.ops.cat([fd.ops.neg(high), low], dim=3)
        c, s = (fd.ops.broadcast_in_dim(t, shape=x.shape(), broadcast_dims=[2, 3]) for t in (c, s))
        return fd.ops.add(fd.ops.mul(x, c), fd.ops.mul(turned, s))

    check(define, [x, c, s], x * c + torch.cat([-x[..., width:], x[..., :width]], -1) * s)


def test_rows_of_what_is_computed_are_selected() -> None:
    x, y, index = numbers(20, 16), numbers(20, 16) + 1, places(20, 7)
    check(lambda fd, x, y, i: fd.ops.index_select(fd.ops.mul(double(fd, x), y), i, 0), [x, y, index], ((2 * x + 1) * y)[index])


def test_a_bias_is_looked_up_along_its_own_axis_only() -> None:
    """Of x + b only x varies over rows: b is read at its own positions."""
    x, b, index = numbers(20, 16), numbers(16), places(20, 7)
    fd = check(
        lambda fd, x, b, i: fd.ops.index_select(fd.ops.add(x, fd.ops.broadcast_in_dim(b, shape=x.shape(), broadcast_dims=[1])), i, 0), [x, b, index], (x + b)[index]
    )
    text = fd.fec.get_cuda_kernel([x, b, index])  # type: ignore[attr-defined]
    assert text.count("weft::position") == 1


@pytest.mark.parametrize("fill", [0.0, -1.5, float("inf")])
@pytest.mark.parametrize("name", ["neg", "exp", "cast", "sin", "abs"])
def test_a_pad_of_what_is_computed_keeps_its_fill(name: str, fill: float) -> None:
    x = numbers(6, 8, dtype=torch.bfloat16 if name == "cast" else torch.float32)

    def define(fd: FusionDefinition, x: Any) -> Any:
        y = fd.ops.cast(x, F32) if name == "cast" else getattr(fd.ops, name)(x)
        return fd.ops.pad(y, [2, 3, -1, 2], fill)

    y = x.float() if name == "cast" else getattr(torch, name)(x)
    check(define, [x], torch.nn.functional.pad(y, (2, 3, -1, 2), value=fill))


def test_a_pad_of_a_slice_and_a_slice_of_a_pad() -> None:
    x = numbers(10, 12)
    pad = torch.nn.functional.pad
    check(lambda fd, x: fd.ops.pad(fd.ops.slice(x, [2, 3], [8, 9]), [1, 2], 5.0), [x], pad(x[2:8, 3:9], (1, 2), value=5.0))
    check(lambda fd, x: fd.ops.slice(fd.ops.pad(x, [4, 4], 5.0), [0, 2], [10, 18]), [x], pad(x, (4, 4), value=5.0)[:, 2:18])
    check(lambda fd, x: fd.ops.pad(fd.ops.pad(x, [-2, 4], 5.0), [3, -1], 7.0), [x], pad(pad(x, (-2, 4), value=5.0), (3, -1), value=7.0))


def test_a_gather_of_a_gather_and_of_a_slice() -> None:
    x, i, j = numbers(9, 8), places(9, 6), places(6, 5)
    check(lambda fd, x, i, j: fd.ops.index_select(fd.ops.index_select(x, i, 0), j, 0), [x, i, j], x[i][j])
    check(lambda fd, x, i, j: fd.ops.index_select(fd.ops.slice(x, [3, 0], [9, 8]), j, 0), [x, i, j], x[3:][j])


def test_views_between_a_lookup_and_its_source() -> None:
    """Broadcast, expand, squeeze, permute and a selection of a mask that counts positions."""
    x, b = numbers(6, 8), numbers(8)

    def define(fd: FusionDefinition, x: Any, b: Any) -> Any:
        row = fd.ops.iota(fd.define_scalar(8, dtype=DataType.Int), fd.define_scalar(1, dtype=DataType.Int), fd.define_scalar(2, dtype=DataType.Int), DataType.Int)
        wide = fd.ops.expand(fd.ops.broadcast(b, [True, False]), [6, 8])
        y = fd.ops.add(fd.ops.add(x, wide), fd.ops.broadcast(fd.ops.cast(row, F32), [True, False]))
        return fd.ops.slice(fd.ops.permute(fd.ops.neg(fd.ops.broadcast(y, [True, False, False])), [1, 0, 2]), [1, 0, 2], [5, 1, 7])

    wanted = -(x + b + torch.arange(8) * 2 + 1)[1:5, None, 2:7]
    check(define, [x, b], wanted)


def test_a_part_of_a_norm_reads_its_row_again_and_one_sum_per_row() -> None:
    """What a row is multiplied by is at its own position after the slice: only the row is looked up, and the norm never exists as a whole."""
    x = numbers(5, 64)

    def define(fd: FusionDefinition, x: Any) -> Any:
        total = fd.ops.broadcast_in_dim(fd.ops.sum(x, [1]), shape=x.shape(), broadcast_dims=[0])
        return fd.ops.slice(fd.ops.mul(x, total), [0, 16], [5, 48])

    check(define, [x], (x.double() * x.double().sum(1, keepdim=True))[:, 16:48], kernels=2, tolerance=1e-4)


def test_one_element_of_a_computed_tensor() -> None:
    x = numbers(6, 8)
    check(lambda fd, x: fd.ops.select(fd.ops.exp(x), 2, 1), [x], x.exp()[:, 2])


def test_a_constant_and_positions_are_not_read_from_memory() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([6, 8], dtype=F32)
        fd.add_output(fd.ops.add(x, fd.ops.pad(fd.ops.full([6, 4], 3.0, F32), [2, 2], 1.0)))
    data = numbers(6, 8)
    assert torch.equal(fd.execute([data])[0], data + torch.nn.functional.pad(torch.full((6, 4), 3.0), (2, 2), value=1.0))


def test_equal_slices_of_which_one_is_a_result() -> None:
    """The second takes what the first one computed, and leaves it the result's."""
    x, index = torch.randn(5), torch.tensor([3, 1, 4])
    with FusionDefinition() as fd:
        taken = fd.ops.gather(fd.ops.neg(fd.from_pytorch(x)), fd.from_pytorch(index), 0)
        first, second = (fd.ops.slice(taken, [0], [2]) for _ in range(2))
        fd.add_output(first)
        fd.add_output(fd.ops.cat([second, second], 0))
    with poisoned_outputs():
        found = fd.execute([x, index])
    wanted = -x[index][:2]
    assert torch.equal(found[0], wanted) and torch.equal(found[1], torch.cat([wanted, wanted]))


def test_a_costly_chain_stays() -> None:
    """A source that took many instructions is written to memory once instead."""
    with FusionDefinition() as fd:
        x, i = fd.define_tensor([-1, -1]), fd.define_tensor([-1], dtype=DataType.Int)
        y = x
        for _ in range(60):
            y = fd.ops.add(fd.ops.mul(y, 0.5), x)
        fd.add_output(fd.ops.index_select(y, i, 0))
    fusion, _ = fd.fusion.clone()
    move_lookups_up(fusion)
    (lookup,) = (e for e in fusion.tensor_exprs() if isinstance(e, LookupOp))
    assert lookup.source.definition() is not None


@pytest.mark.parametrize("widths", [(8, 8, 8), (5, 3, 9), (16, 0, 8), (1, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_a_cat_reads_each_part_where_it_is(widths: tuple[int, ...], dtype: torch.dtype) -> None:
    """No element passes a comparison of its own: each vector is one load of the part that it is in; -0.0 stays."""
    parts = [numbers(6, width, dtype=dtype) for width in widths]
    if dtype.is_floating_point:
        parts[0][0, 0] = -0.0
    fd = check(lambda fd, *xs: fd.ops.cat(list(xs), 1), parts, torch.cat(parts, 1))
    assert "select" not in fd.fec.get_cuda_kernel(parts)  # type: ignore[attr-defined]
    assert torch.equal(fd.execute(parts)[0].signbit() if dtype.is_floating_point else fd.execute(parts)[0], torch.cat(parts, 1).signbit() if dtype.is_floating_point else torch.cat(parts, 1))


def test_a_cat_of_computed_parts_and_a_slice_of_a_cat() -> None:
    a, b = numbers(6, 16), numbers(6, 16)[:, :8].contiguous()
    check(lambda fd, a, b: fd.ops.neg(fd.ops.cat([fd.ops.exp(a), b], 1)), [a, b], -torch.cat([a.exp(), b], 1))
    check(lambda fd, a, b: fd.ops.cat([fd.ops.slice(a, [0, 2], [6, 9]), b], 1), [a, b], torch.cat([a[:, 2:9], b], 1))
    index = places(16, 5)
    check(lambda fd, a, b, i: fd.ops.cat([fd.ops.index_select(a, i, 1), b], 1), [a, b, index], torch.cat([a[:, index], b], 1))
    check(lambda fd, a, b: fd.ops.slice(fd.ops.cat([a, b], 1), [0, 8], [6, 20]), [a, b], torch.cat([a, b], 1)[:, 8:20])


@pytest.mark.parametrize("end, begin, stop", [(4, 0, 1), (4, 0, 2), (4, 1, 3), (6, 0, 4), (9, 3, 5)])
def test_a_slice_of_a_slice_of_a_cat_that_lies_in_its_first_part(end: int, begin: int, stop: int) -> None:
    x, y = numbers(5, 4), numbers(5, 5)
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor(list(t.shape), contiguity=True, dtype=F32) for t in (x, y)]
        part = fd.ops.slice(fd.ops.cat(tensors, dim=1), [0, 0], [5, end])
        fd.add_output(fd.ops.neg(fd.ops.slice(part, [0, begin], [5, stop])))
    with poisoned_outputs():
        (result,) = fd.execute([x, y])
    assert torch.equal(result, -torch.cat([x, y], 1)[:, :end][:, begin:stop])


def turned_halves(fd: FusionDefinition, x: Any, sizes: list[int]) -> Any:
    """Both halves of the last axis exchanged, the first of them negated."""
    half = sizes[-1] // 2
    low = fd.ops.slice(x, start_indices=[0] * len(sizes), end_indices=[*sizes[:-1], half])
    high = fd.ops.slice(x, start_indices=[0] * (len(sizes) - 1) + [half], end_indices=sizes)
    return fd.ops.cat([fd.ops.neg(high), low], dim=len(sizes) - 1)


@pytest.mark.parametrize("order", [[1, 0, 2, 3], [0, 2, 1, 3], [2, 0, 1, 3]])
def test_rows_are_normalized_then_transposed_then_turned_in_one_kernel(order: list[int]) -> None:
    """The result of a row is read at its own place, whatever the order of axes: that is no lookup, which would need it in memory."""
    x, s = numbers(2, 5, 3, 32), numbers(32)
    sizes = [x.shape[d] for d in order]

    def define(fd: FusionDefinition, x: Any, s: Any) -> Any:
        normed = fd.ops.permute(fd.ops.mul(x, fd.ops.rsqrt(fd.ops.sum(fd.ops.mul(x, x), dims=[3], keepdim=True))), order)
        s = fd.ops.broadcast_in_dim(s, shape=normed.shape(), broadcast_dims=[3])
        return fd.ops.add(normed, fd.ops.mul(turned_halves(fd, normed, sizes), s))

    normed = (x * x.square().sum(3, keepdim=True).rsqrt()).permute(order)
    check(define, [x, s], normed + torch.cat([-normed[..., 16:], normed[..., :16]], -1) * s)


def test_weights_and_results_of_rows_do_not_keep_lookups_of_a_layer_norm_from_moving() -> None:
    """A layer norm with weight and bias has five sources, four of which are smaller than what is looked up: its pairs are exchanged in the same kernel."""
    x, w, b = numbers(20, 16, 2), numbers(16, 2), numbers(16, 2) + 1

    def define(fd: FusionDefinition, x: Any, w: Any, b: Any) -> Any:
        centered = fd.ops.sub(x, fd.ops.mul(fd.ops.sum(x, dims=[1, 2], keepdim=True), 1 / 32))
        square = fd.ops.sum(fd.ops.mul(centered, centered), dims=[1, 2], keepdim=True)
        w, b = (fd.ops.broadcast_in_dim(t, shape=x.shape(), broadcast_dims=[1, 2]) for t in (w, b))
        normed = fd.ops.add(fd.ops.mul(fd.ops.mul(centered, fd.ops.rsqrt(fd.ops.add(fd.ops.mul(square, 1 / 32), 1e-5))), w), b)
        even = fd.ops.slice(normed, start_indices=[0, 0, 0], end_indices=[20, 16, 1])
        odd = fd.ops.slice(normed, start_indices=[0, 0, 1], end_indices=[20, 16, 2])
        return fd.ops.add(normed, fd.ops.cat([fd.ops.neg(odd), even], dim=2))

    normed = torch.nn.functional.layer_norm(x, (16, 2), w, b)
    check(define, [x, w, b], normed + torch.stack([-normed[..., 1], normed[..., 0]], -1), tolerance=1e-5)


def test_parts_that_are_read_in_place_share_the_loops_of_a_reduction() -> None:
    """Half of a normalized row turns, the other half stays: behind a transpose, too, what stays is x at its own place."""
    x, w = numbers(2, 5, 3, 32), numbers(32)
    with FusionDefinition() as fd:
        given, weight = (fd.define_tensor(list(t.shape), contiguity=[True] * t.dim(), dtype=F32) for t in (x, w))
        centered = fd.ops.sub(given, fd.ops.mul(fd.ops.sum(given, dims=[3], keepdim=True), 1 / 32))
        normed = fd.ops.permute(fd.ops.mul(centered, fd.ops.broadcast_in_dim(weight, shape=[2, 5, 3, 32], broadcast_dims=[3])), [0, 2, 1, 3])
        turned = fd.ops.slice(normed, start_indices=[0, 0, 0, 0], end_indices=[2, 3, 5, 16])
        kept = fd.ops.slice(normed, start_indices=[0, 0, 0, 16], end_indices=[2, 3, 5, 32])
        fd.add_output(fd.ops.cat([turned_halves(fd, turned, [2, 3, 5, 16]), kept], dim=3))
    with poisoned_outputs():
        (result,) = fd.execute([x, w])
    normed = ((x.double() - x.double().mean(3, keepdim=True)) * w.double()).permute(0, 2, 1, 3)
    torch.testing.assert_close(result.double(), torch.cat([-normed[..., 8:16], normed[..., :8], normed[..., 16:]], -1), rtol=1e-5, atol=1e-5)
    assert len(fd.fec.kernel_runtimes) == 1  # type: ignore[attr-defined]


def test_a_lookup_of_a_lookup_is_one_also_where_its_source_is_too_costly_to_compute_again() -> None:
    x = torch.randn(40, 70)

    def define(fd: FusionDefinition, x: Any) -> Any:
        y = x
        for _ in range(30):
            y = fd.ops.exp(fd.ops.tanh(y))
        part = fd.ops.slice(y, [1, 0], [40, 70])
        return fd.ops.add(fd.ops.slice(part, [0, 0], [39, 69]), fd.ops.slice(part, [0, 1], [39, 70]))

    y = x.double()
    for _ in range(30):
        y = y.tanh().exp()
    check(define, [x], y[1:, :-1] + y[1:, 1:], kernels=2, tolerance=1e-4)


@pytest.mark.parametrize(("rows", "columns"), [(20, 16), (9, 7), (1, 5), (6, 1)])
def test_rows_of_what_is_transposed_twice_are_read_in_place(rows: int, columns: int) -> None:
    """Neighbours of the result are neighbours in memory. After one transposition they are rows apart, so that is done first."""
    x, index = numbers(rows, columns), places(rows, 11)

    def twice(fd: FusionDefinition, x: Any, i: Any) -> Any:
        return fd.ops.index_select(fd.ops.permute(double(fd, fd.ops.permute(x, dims=[1, 0])), dims=[1, 0]), i, 0)

    check(twice, [x, index], (2 * x + 1)[index])


def test_rows_of_what_is_transposed_once_are_read_after_that() -> None:
    x, index = numbers(24, 20), places(20, 11)
    check(lambda fd, x, i: fd.ops.index_select(double(fd, fd.ops.permute(x, dims=[1, 0])), i, 0), [x, index], (2 * x.T + 1)[index], kernels=2)


@pytest.mark.parametrize(("count", "kernels"), [(12, 1), (13, 2)])
def test_a_cat_that_is_looked_up_at_many_places_is_stored(count: int, kernels: int) -> None:
    """Each place would select among the parts."""
    x, y = numbers(9, 7), numbers(14, 7) + 1

    def windows(fd: FusionDefinition, x: Any, y: Any) -> Any:
        both = fd.ops.mul(fd.ops.cat([x, y], dim=0), 3.0)
        total = None
        for k in range(count):
            found = fd.ops.index_select(both, fd.ops.add(fd.ops.iota(fd.define_scalar(10), dtype=DataType.Int), k), 0)
            total = found if total is None else fd.ops.add(total, found)
        return total

    check(windows, [x, y], sum(3 * torch.cat([x, y])[k : k + 10] for k in range(count)), kernels=kernels, tolerance=1e-5)  # type: ignore[arg-type]
