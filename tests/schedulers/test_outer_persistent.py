"""Normalizations across memory: columns in registers of a block, of a cluster, and read again."""

from __future__ import annotations

import re

import pytest
import torch
from channel_cases import BF16, FLOAT, along, batch_norm, checked, softmax_across, with_params
from fusion_check import poisoned_outputs
from row_fusions import numbers, wide

from weft import DataType, FusionDefinition
from weft.options import options
from weft.schedulers import outer_persistent

KEPT = dict(storage="register", max_registers=128)
CASES = [
    (8, 4, 8, 2, 1, (13, 70)), (4, 8, 4, 4, 2, (29, 64)), (8, 4, 16, 1, 4, (50, 96)), (1, 32, 2, 3, 2, (11, 37)), (8, 4, 8, 2, 8, (3, 32)), (2, 16, 4, 1, 1, (1, 34)),
]  # fmt: skip


@pytest.mark.parametrize(("vector", "x", "y", "batches", "cluster", "sizes"), CASES)
def test_columns_are_kept_in_registers(vector, x, y, batches, cluster, sizes) -> None:
    """Rows that blocks and threads divide and that they do not; blocks of a cluster without any row; columns that end in the middle of a block."""
    vector = vector if sizes[1] % vector == 0 else 2
    is_projected = cluster > 1
    fields = dict(KEPT, vector_elems=vector, bdimx=x, bdimy=y, batches=batches, cluster_blocks=cluster, project_to_inputs=is_projected)
    with options(check="races"):
        runtime = checked(with_params(softmax_across(), **fields), [numbers(BF16, *sizes) * 4])
    assert runtime.scheduler == "outer_persistent" and runtime.program.text.count("load_global") == 1


@pytest.mark.parametrize("cluster", [1, 4])
def test_channels_last_in_registers(cluster) -> None:
    shape = (3, 5, 2, 40)
    fields = dict(KEPT, vector_elems=8, bdimx=4, bdimy=8, batches=4 // cluster, cluster_blocks=cluster)
    with options(check="races"):
        checked(with_params(batch_norm(BF16, channel=3), **fields), [numbers(BF16, *shape), numbers(BF16, 40), numbers(BF16, 40) + 1])


@pytest.mark.parametrize(("rows", "x", "cluster", "channels"), [(101, 2, 4, 40), (3, 4, 8, 40), (64, 1, 2, 8), (77, 4, 3, 7)])
def test_channels_last_read_again_by_a_cluster(rows, x, cluster, channels) -> None:
    """Blocks that share columns: rows that they do not divide, blocks without any row, channels that fill no vector."""
    fields = dict(storage="reread", vector_elems=8 if channels % 8 == 0 else 1, bdimx=x, bdimy=16, batches=0, cluster_blocks=cluster, max_registers=64)
    with options(check="races"):
        inputs = [numbers(BF16, rows, 3, 1, channels), numbers(BF16, channels), numbers(BF16, channels) + 1]
        runtime = checked(with_params(batch_norm(BF16, channel=3), **fields), inputs)
    assert runtime.scheduler == "outer_persistent" and runtime.program.cluster == (cluster, 1, 1)


def test_few_long_columns_are_shared_as_chosen() -> None:
    runtime = checked(batch_norm(BF16, channel=3), [numbers(BF16, 3, 60, 60, 40), numbers(BF16, 40), numbers(BF16, 40)])
    assert runtime.proposal.params.cluster_blocks == 8 and runtime.proposal.params.vector_elems == 8


def test_long_columns_beyond_l2_are_read_by_two_kernels(monkeypatch) -> None:
    """One for their moments, over all multiprocessors, and one that uses them; both read what the user gave."""
    monkeypatch.setattr(outer_persistent, "rereads_from_memory", lambda *_: 1.0)
    fd = batch_norm(BF16, channel=3)
    checked(fd, [numbers(BF16, 6, 60, 60, 40) + 3, numbers(BF16, 40), numbers(BF16, 40)])
    runtimes = {r.scheduler: r.program.text for r in fd.fec.kernel_runtimes}
    assert set(runtimes) == {"reduction", "pointwise"} and "FoldMoments" in runtimes["reduction"]
    assert all(re.search(r"const weft::bf16\*(?: __restrict__)? T0,", text) for text in runtimes.values())


def moments_of_columns() -> FusionDefinition:
    with FusionDefinition() as fd:
        for value in fd.ops.var_mean(wide(fd, fd.define_tensor([-1, -1], contiguity=True, dtype=BF16)), [0], correction=0, keepdim=False):
            fd.add_output(value)
    return fd


@pytest.mark.parametrize("first", [3.0, float("inf"), float("nan")])
def test_moments_of_columns_ask_for_the_first_element_once_for_each_batch(first) -> None:
    """With the same bits as where each element asks, as those with bounds of their own do, whatever the first element is."""
    x = numbers(BF16, 1501, 24) + 3
    x[0, 5] = first
    outs = []
    for asks_once in (True, False):
        fd = with_params(moments_of_columns(), vector_elems=8, unroll=4, unswitch=asks_once)
        outs.append(torch.stack(fd.execute([x])).view(torch.int32))
        (runtime,) = fd.fec.kernel_runtimes
        assert runtime.scheduler == "reduction" and ("absorb_run<float, 4>" in runtime.program.text) is asks_once
    assert torch.equal(*outs)


def test_backward_of_long_columns_beyond_l2_is_two_kernels(monkeypatch) -> None:
    """Sums of the gradient, and of its products; then what uses them."""
    monkeypatch.setattr(outer_persistent, "rereads_from_memory", lambda *_: 1.0)
    with FusionDefinition() as fd:
        x, g = (wide(fd, fd.define_tensor([-1, -1], contiguity=True, dtype=FLOAT)) for _ in range(2))
        total, product = fd.ops.sum(g, [0], True), fd.ops.sum(fd.ops.mul(g, x), [0], True)
        fd.add_output(fd.ops.sub(fd.ops.sub(g, total), fd.ops.mul(x, product)))
    checked(fd, [numbers(FLOAT, 20001, 12) / 8, numbers(FLOAT, 20001, 12) / 8])
    assert sorted(r.scheduler for r in fd.fec.kernel_runtimes) == ["pointwise", "reduction"]


@pytest.mark.parametrize("cluster", [1, 4])
@pytest.mark.parametrize("is_norm", [False, True])
def test_bounds_of_kept_columns_are_one_test(cluster, is_norm) -> None:
    rows, fields = 61, dict(KEPT, vector_elems=8, bdimx=4, bdimy=8, batches=8 // cluster, cluster_blocks=cluster, unswitch=True)
    inputs = [numbers(BF16, rows, 1, 1, 40), numbers(BF16, 40), numbers(BF16, 40) + 1] if is_norm else [numbers(BF16, rows, 72)]
    with options(check="races"):
        checked(with_params(batch_norm(BF16, channel=3) if is_norm else softmax_across(), **fields), inputs)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 40), (300, 1), (257, 33), (5000, 8)])
def test_softmax_across_as_chosen(sizes) -> None:
    checked(softmax_across(FLOAT), [numbers(FLOAT, *sizes)])


@pytest.mark.parametrize("dtype", [BF16, FLOAT], ids=str)
@pytest.mark.parametrize("sizes", [(1, 3), (2, 1), (3, 140001), (19, 33794), (21, 67584), (63, 16899)], ids=str)
def test_short_columns_in_one_thread(sizes, dtype) -> None:
    """Columns that no block ends with, that allow vectors of 1, 2 and more; sizes for part of the chip are read again."""
    with options(check="races"):
        runtime = checked(softmax_across(dtype), [numbers(dtype, *sizes) * 4])
    params = runtime.proposal.params
    is_alone = sizes[1] > 132 * 128  # a thread of each block of the chip has at least one
    assert runtime.scheduler != "outer_persistent" or (params.storage == "register") == is_alone
    assert not is_alone or params.bdimy == 1 and params.batches == sizes[0] and "reduce_" not in runtime.program.text


def test_an_axis_in_the_middle() -> None:
    """(N, C, HW) over C: the columns of all images; also channels-last strides."""
    x = numbers(BF16, 3, 19, 40)
    checked(softmax_across(BF16, 3, 1), [x])
    checked(softmax_across(BF16, 3, 1), [x[:, :, ::2].contiguous()])


def test_nothing_to_normalize() -> None:
    for sizes in ((0, 8), (8, 0)):
        (y,) = softmax_across().execute([torch.empty(sizes, dtype=torch.bfloat16)])
        assert y.shape == sizes


def test_two_kernels_of_long_columns_both_compute_what_is_short_from_inputs(monkeypatch) -> None:
    """No product over all rows goes from one to the other: floats of twice the bytes of what both read."""
    monkeypatch.setattr(outer_persistent, "rereads_from_memory", lambda *_: 1.0)
    with FusionDefinition() as fd:
        g, x = (wide(fd, fd.define_tensor([-1, -1], contiguity=True, dtype=BF16)) for _ in range(2))
        mean, scale, weight = (along(fd, fd.define_tensor([-1], contiguity=True, dtype=FLOAT), x, [1]) for _ in range(3))
        normal, scaled = fd.ops.mul(fd.ops.sub(x, mean), scale), fd.ops.mul(g, weight)
        total, product = (fd.ops.sum(t, [0], True) for t in (scaled, fd.ops.mul(scaled, normal)))
        fd.add_output(fd.ops.cast(fd.ops.sub(scaled, fd.ops.add(total, fd.ops.mul(normal, product))), BF16))
    checked(fd, [numbers(BF16, 20001, 16) / 64, numbers(BF16, 20001, 16) / 64, *(numbers(FLOAT, 16) for _ in range(3))])
    texts = {r.scheduler: r.program.text for r in fd.fec.kernel_runtimes}
    assert set(texts) == {"reduction", "pointwise"}
    for text in texts.values():
        assert all(re.search(rf"const weft::bf16\*(?: __restrict__)? T{n}\b", text) for n in (0, 2))


@pytest.mark.parametrize("rows", [1, 7, 300])
def test_values_of_rows_that_lose_the_axis_of_columns(rows: int) -> None:
    """v / s of each row, also a result of its own, scales the row: no loop of its one axis is within those of columns, so that all rows would be kept."""
    with FusionDefinition() as fd:
        o = fd.ops
        x, s = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float), fd.define_tensor([-1, 1], contiguity=[True, None], dtype=DataType.Float)
        v, low = fd.define_tensor([-1], contiguity=True, dtype=DataType.Float), o.maximum(s, 0.5)
        share = o.div(v, o.squeeze(low, [1]))
        y = o.mul(x, o.add(o.broadcast(share, [False, True]), low))
        fd.add_output(o.sin(o.sub(y, o.broadcast(o.div(o.sum(y, [0]), 7.0), [True, False]))))
        fd.add_output(o.neg(share))
    made = torch.Generator().manual_seed(rows)
    inputs = [torch.randn(rows, 10, generator=made), torch.rand(rows, 1, generator=made), torch.randn(rows, generator=made)]
    with poisoned_outputs(), options(check="races", strict_schedules=True, chip="H200"):
        out, negative = fd.execute(inputs)
    a, b, c = (t.double() for t in inputs)
    b = b.clamp_min(0.5)
    y = a * (c[:, None] / b + b)
    torch.testing.assert_close(out.double(), (y - y.sum(0) / 7).sin(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(negative.double(), -c / b[:, 0], rtol=1e-6, atol=1e-6)
