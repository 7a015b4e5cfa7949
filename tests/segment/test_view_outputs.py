"""Outputs that only rename memory of an input share it, as in nvFuser; others do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft import DataType, FusionDefinition


def define(build: Callable[[FusionDefinition], None]) -> FusionDefinition:
    with FusionDefinition() as fd:
        build(fd)
    return fd


def strided(fd: FusionDefinition, rank: int) -> Any:
    return fd.define_tensor(shape=[-1] * rank, contiguity=False)


X = torch.randn(6, 8, 10)

VIEWS: list[tuple[str, Callable[..., Any], Callable[[torch.Tensor], torch.Tensor]]] = [
    ("set", lambda ops, x: ops.set(x), lambda x: x),
    ("permute", lambda ops, x: ops.permute(x, [2, 0, 1]), lambda x: x.permute(2, 0, 1)),
    ("there and back", lambda ops, x: ops.permute(ops.permute(x, [2, 0, 1]), [1, 2, 0]), lambda x: x),
    ("broadcast", lambda ops, x: ops.broadcast(x, [False, True, False, False]), lambda x: x.unsqueeze(1)),
    ("expand", lambda ops, x: ops.expand(ops.broadcast(x, [True, False, False, False]), [4, -1, -1, -1]), lambda x: x.expand(4, -1, -1, -1)),
    ("squeeze", lambda ops, x: ops.squeeze(ops.broadcast(x, [True, False, False, False]), [0]), lambda x: x),
    ("split", lambda ops, x: ops.reshape(x, [6, 2, 4, 10]), lambda x: x.view(6, 2, 4, 10)),
    ("slice", lambda ops, x: ops.slice(x, [1, 0, 2], [5, 8, 9]), lambda x: x[1:5, :, 2:9]),
    ("slice of a permute", lambda ops, x: ops.slice(ops.permute(x, [1, 0, 2]), [3, 1, 0], [8, 4, 10]), lambda x: x.permute(1, 0, 2)[3:8, 1:4]),
]


@pytest.mark.parametrize(("build", "expected"), [case[1:] for case in VIEWS], ids=[case[0] for case in VIEWS])
@pytest.mark.parametrize("x", [X, torch.randn(12, 8, 20)[::2, :, 5:15]], ids=["dense", "strided"])
def test_a_renamed_input_is_a_view(build: Callable[..., Any], expected: Callable[..., torch.Tensor], x: torch.Tensor) -> None:
    fd = define(lambda fd: fd.add_output(build(fd.ops, strided(fd, 3))))
    wanted = expected(x)
    for _ in range(2):
        (out,) = fd.execute([x])
        assert out.data_ptr() == wanted.data_ptr() and out.shape == wanted.shape
        assert all(n == 1 or a == b for n, a, b in zip(out.shape, out.stride(), wanted.stride()))
    assert not fd.fec.kernel_runtimes


@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.parametrize(("build", "expected"), [case[1:] for case in VIEWS if case[0] != "split"], ids=[case[0] for case in VIEWS if case[0] != "split"])
def test_a_renamed_input_in_another_order_is_a_view(build: Callable[..., Any], expected: Callable[..., torch.Tensor], is_static: bool) -> None:
    """The order that a computed output would have from its input is no wish of the user's."""
    x = torch.randn(8, 10, 6).permute(2, 0, 1)
    fd = define(lambda fd: fd.add_output(build(fd.ops, fd.from_pytorch(x, static_sizes=is_static))))
    (out,), wanted = fd.execute([x]), expected(x)
    assert out.data_ptr() == wanted.data_ptr() and out.shape == wanted.shape
    assert all(n == 1 or a == b for n, a, b in zip(out.shape, out.stride(), wanted.stride()))
    assert not fd.fec.kernel_runtimes


def test_views_beside_what_is_computed() -> None:
    def build(fd: FusionDefinition) -> None:
        x = strided(fd, 3)
        t = fd.ops.permute(x, [1, 0, 2])
        fd.add_output(t)
        fd.add_output(fd.ops.sum(fd.ops.neg(t), [2]))

    fd = define(build)
    view, sums = fd.execute([X])
    assert view.data_ptr() == X.data_ptr()
    torch.testing.assert_close(sums, -X.permute(1, 0, 2).sum(2))
    assert len(fd.fec.kernel_runtimes) == 1


def test_merging_axes_of_a_strided_input_is_a_copy() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor(shape=[6, 8], contiguity=[False, True])
        fd.add_output(fd.ops.reshape(x, [48]))

    fd = define(build)
    dense = torch.randn(6, 8)
    assert fd.execute([dense])[0].data_ptr() == dense.data_ptr()
    part = torch.randn(6, 9)[:, :8]
    (copy,) = fd.execute([part])
    assert torch.equal(copy, part.reshape(48)) and copy.is_contiguous()
    assert len(fd.fec.kernel_runtimes) == 1


def test_an_order_that_was_asked_for_is_made() -> None:
    def build(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.stride_order(fd.define_tensor(shape=[-1, -1], contiguity=True), [0, 1]))

    x = torch.randn(5, 7)
    (out,) = define(build).execute([x])
    assert out.stride() == (1, 5) and torch.equal(out, x)


def test_a_view_of_what_is_written_in_place_is_a_copy() -> None:
    """It has the values of before the call."""

    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.permute(x, [1, 0]))
        fd.add_output(fd.ops.add(x, 1.0), x)

    x = torch.randn(5, 7)
    old = x.clone()
    (out,) = define(build).execute([x])
    assert torch.equal(out, old.t()) and torch.equal(x, old + 1)


def test_casts_and_readers_of_a_segment_set_are_computed() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor(shape=[-1], contiguity=True)
        fd.add_output(fd.ops.segment_set(x))
        fd.add_output(fd.ops.cast(x, DataType.Double))

    x = torch.randn(9)
    for out in define(build).execute([x]):
        assert out.data_ptr() != x.data_ptr() and torch.equal(out.float(), x)


def test_views_of_nothing() -> None:
    fd = define(lambda fd: fd.add_output(fd.ops.permute(strided(fd, 2), [1, 0])))
    assert fd.execute([torch.randn(0, 4)])[0].shape == (4, 0)


def test_no_gradient_is_recorded() -> None:
    fd = define(lambda fd: fd.add_output(fd.ops.permute(strided(fd, 2), [1, 0])))
    with torch.no_grad():
        (out,) = fd.execute([torch.nn.Parameter(torch.randn(3, 4))])
    assert not out.requires_grad and type(out) is torch.Tensor


# ---------------------------------------------------------------- views of results
def _rows_and(*views: Callable[..., Any], keeps_base: bool = False) -> FusionDefinition:
    """exp of a 6x8x10 tensor, and views of it."""

    def build(fd: FusionDefinition) -> None:
        y = fd.ops.exp(strided(fd, 3))
        for view in views:
            fd.add_output(view(fd.ops, y))
        if keeps_base:
            fd.add_output(y)

    return define(build)


def _is_view(view: torch.Tensor, wanted: torch.Tensor, base: torch.Tensor) -> bool:
    same_strides = all(n == 1 or a == b for n, a, b in zip(wanted.shape, view.stride(), wanted.stride()))
    return view.data_ptr() - base.data_ptr() == 4 * wanted.storage_offset() and view.shape == wanted.shape and same_strides


@pytest.mark.parametrize(("build", "expected"), [case[1:] for case in VIEWS], ids=[case[0] for case in VIEWS])
def test_a_renamed_result_that_is_returned_is_a_view(build: Callable[..., Any], expected: Callable[..., torch.Tensor]) -> None:
    fd = _rows_and(build, keeps_base=True)
    for x in (X, torch.randn(12, 8, 20)[::2, :, 5:15], X):
        view, base = fd.execute([x])
        assert base.is_contiguous() and _is_view(view, expected(base), base)
        torch.testing.assert_close(view, expected(x.exp()))
    assert len(fd.fec.kernel_runtimes) <= 2  # of dense inputs, and of others


def test_views_that_show_all_of_a_result_share_its_memory() -> None:
    parts = [lambda ops, y, n=n: ops.permute(ops.slice(y, [0, 4 * n, 0], [6, 4 * n + 4, 10]), [1, 0, 2]) for n in (0, 1)]
    first, second = _rows_and(*parts).execute([X])
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr() and first.stride() == (10, 80, 1)
    torch.testing.assert_close(torch.cat([first, second]), X.exp().transpose(0, 1))


def test_a_part_of_a_result_is_computed_alone() -> None:
    (part,) = _rows_and(lambda ops, y: ops.slice(y, [0, 2, 0], [6, 4, 10])).execute([X])
    assert part.is_contiguous() and part.untyped_storage().nbytes() == 6 * 2 * 10 * 4
    torch.testing.assert_close(part, X.exp()[:, 2:4])


def test_a_permuted_result_is_not_arranged_anew() -> None:
    (out,) = _rows_and(lambda ops, y: ops.permute(y, [2, 0, 1])).execute([X])
    assert out.stride() == (1, 80, 10)
    torch.testing.assert_close(out, X.exp().permute(2, 0, 1))


def test_an_order_that_was_asked_for_is_made_of_a_result() -> None:
    view, base = _rows_and(lambda ops, y: ops.stride_order(ops.permute(y, [2, 0, 1]), [2, 1, 0]), keeps_base=True).execute([X])
    assert view.is_contiguous() and torch.equal(view, base.permute(2, 0, 1))


def test_a_permuted_product_needs_no_kernel() -> None:
    def build(fd: FusionDefinition) -> None:
        x, w = strided(fd, 2), strided(fd, 2)
        heads = fd.ops.reshape(fd.ops.matmul(x, w), [2, 3, 4, 5])
        for n in range(2):
            fd.add_output(fd.ops.permute(fd.ops.slice(heads, [0, 0, 2 * n, 0], [2, 3, 2 * n + 2, 5]), [0, 2, 1, 3]))

    x, w = torch.randn(6, 7), torch.randn(7, 20)
    fd = define(build)
    outs = fd.execute([x, w])
    wanted = (x @ w).view(2, 3, 4, 5).permute(0, 2, 1, 3)
    torch.testing.assert_close(torch.cat(outs, 1), wanted)
    assert not fd.fec.kernel_runtimes and {out.stride() for out in outs} == {wanted.stride()}
    assert outs[0].untyped_storage().data_ptr() == outs[1].untyped_storage().data_ptr()


def test_a_view_of_what_is_written_into_an_input_is_a_copy() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        y = fd.ops.add(x, 1.0)
        fd.add_output(y, x)
        fd.add_output(fd.ops.permute(y, [1, 0]))

    x = torch.randn(5, 7)
    old = x.clone()
    (out,) = define(build).execute([x])
    assert torch.equal(x, old + 1) and torch.equal(out, x.t()) and out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_channels_last_results_keep_their_order_behind_a_view() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor(shape=[-1] * 4, contiguity=True, stride_order=[3, 0, 2, 1])
        y = fd.ops.relu(x)
        fd.add_output(fd.ops.permute(y, [0, 2, 3, 1]))
        fd.add_output(y)

    x = torch.randn(2, 5, 3, 4).to(memory_format=torch.channels_last)
    view, y = define(build).execute([x])
    assert y.is_contiguous(memory_format=torch.channels_last) and view.is_contiguous() and view.data_ptr() == y.data_ptr()
    assert torch.equal(y, x.relu())


def test_views_of_an_empty_result() -> None:
    view, base = _rows_and(lambda ops, y: ops.permute(y, [2, 0, 1]), keeps_base=True).execute([torch.randn(6, 0, 10)])
    assert view.shape == (10, 6, 0) and base.shape == (6, 0, 10)


@pytest.mark.parametrize("is_returned", [False, True])
@pytest.mark.parametrize("sizes", [(4, 5), (1, 3)])
def test_a_result_with_an_axis_that_is_expanded_to_an_open_size(sizes: tuple[int, int], is_returned: bool) -> None:
    """Only at a call is it known that the axis has no elements of its own, so that a view must not count on them."""

    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        rows, columns = fd.ops.size(x, 0), fd.ops.size(x, 1)
        wide = fd.ops.broadcast_in_dim(fd.ops.neg(x), [rows, columns, rows], [0, 1])
        both = fd.ops.cat([wide, wide], 0)
        if is_returned:
            fd.add_output(both)
        fd.add_output(fd.ops.permute(both, [1, 2, 0]))

    x = torch.randn(sizes)
    wanted = torch.cat([-x[:, :, None].expand(-1, -1, sizes[0])] * 2)
    *others, turned = define(build).execute([x])
    assert torch.equal(turned, wanted.permute(1, 2, 0)) and all(torch.equal(out, wanted) for out in others)
