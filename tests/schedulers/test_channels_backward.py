"""Backward of batch norm: channels of two inputs in registers or in the shared memory of a cluster; its sums are exchanged together."""

from __future__ import annotations

import pytest
import torch
from channel_cases import BF16, FLOAT, batch_norm, batch_norm_backward, checked, with_params
from row_fusions import numbers

from weft.options import current, options

IN_SHARED = dict(kind="2d", storage="shared", batches=0, bdimz=1, outer_batches=1, unswitch=False, late=0, along_run=False, fewer_passes=False, max_registers=64,
                 project_to_inputs=True)  # fmt: skip


def backward_inputs(dtype, shape, channel=1):
    c = shape[channel]
    return [numbers(dtype, *shape), numbers(dtype, *shape) * 2, numbers(dtype, c + 1)[1:], numbers(FLOAT, c), numbers(FLOAT, c).abs() + 0.5]


@pytest.mark.parametrize("is_copied", [False, True])
@pytest.mark.parametrize(("dtype", "shape", "cluster", "threads", "unroll"), [
    (BF16, (6, 2, 16, 40), 4, 64, 2), (BF16, (5, 3, 1, 72), 2, 32, 1), (FLOAT, (3, 2, 7, 12), 1, 64, 2), (BF16, (1, 2, 16, 16), 16, 32, 1),
    (FLOAT, (9, 1, 5, 6), 4, 96, 3),
])  # fmt: skip
def test_channels_in_the_shared_memory_of_a_cluster(dtype, shape, cluster, threads, unroll, is_copied) -> None:
    """Shares that threads divide and that they do not; blocks without any element; accesses of 16, 8 and 2 bytes, the last of which cp.async does not take."""
    fd = with_params(batch_norm_backward(dtype), **IN_SHARED, cluster_blocks=cluster, bdimx=threads, unroll=unroll, is_copied=is_copied)
    with options(check="races"):
        runtime = checked(fd, backward_inputs(dtype, shape))
    text = runtime.program.text
    assert runtime.program.cluster == (cluster, 1, 1) and ("cp_async<" in text) is ("ahead_" in text) is is_copied


def test_columns_of_odd_images_are_not_copied_by_cp_async() -> None:
    fd = with_params(batch_norm_backward(BF16), **IN_SHARED, cluster_blocks=2, bdimx=32, unroll=2, is_copied=True, vector_elems=1)
    with options(check="races"):
        runtime = checked(fd, backward_inputs(BF16, (4, 3, 7, 7)))
    assert "cp_async<" not in runtime.program.text


@pytest.mark.parametrize("is_copied", [False, True])
def test_forward_in_the_shared_memory_of_a_cluster(is_copied) -> None:
    """The residual is read by the last pass."""
    shape = (5, 2, 8, 24)
    fd = with_params(batch_norm(residual=True), **IN_SHARED, cluster_blocks=4, bdimx=32, unroll=2, is_copied=is_copied)
    with options(check="races"):
        checked(fd, [numbers(BF16, *shape), numbers(BF16, 2), numbers(BF16, 2), numbers(BF16, *shape)])


@pytest.mark.parametrize("shape", [(4, 6, 8, 8), (2, 3, 7, 7), (1, 1, 1, 1), (3, 1, 16, 16), (2, 4, 1, 1), (9, 2, 16, 24), (0, 3, 4, 4)])
def test_batch_norm_backward(shape) -> None:
    dtype = BF16 if shape[0] % 2 else FLOAT
    checked(batch_norm_backward(dtype), backward_inputs(dtype, shape))


@pytest.mark.parametrize(("cluster", "call"), [(1, "reduce_rows<"), (4, "reduce_cluster_rows<")])
def test_sums_that_do_not_need_each_other_are_exchanged_together(cluster, call) -> None:
    fd = with_params(batch_norm_backward(), kind="3d", storage="register", batches=1, outer_batches=2, bdimx=None, bdimz=1, cluster_blocks=cluster,
                     rows_per_block=1, pad_to_warp=True, is_warp_only=False, max_registers=64, fill="partial", weights="late")  # fmt: skip
    text = checked(fd, backward_inputs(BF16, (8 if cluster > 1 else 2, 2, 16, 32))).program.text
    assert text.count(f"weft::{call}") == 1 and "float value[2];" in text


def test_sums_that_need_each_other_are_not() -> None:
    """The squares are those of what the mean was subtracted from."""
    text = checked(batch_norm(), [numbers(BF16, 2, 2, 16, 32), numbers(BF16, 2), numbers(BF16, 2)]).program.text
    assert "float value[1];" in text and "float value[2];" not in text


# ---------------------------------------------------------------- the choice, which runs nothing
def chosen(fd, inputs, chip="H100"):
    caller = fd._executor_cache()._caller
    with options(chip=chip):
        sizes, engine = caller.sizes([torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in inputs], None, current())
        return [caller.request(use, sizes, engine, current()).proposal.params for use in sizes.kernels]


def of_sizes(dtype, shape, channel=1):
    wide = [(shape, dtype)] * 2 + [((shape[channel],), t) for t in (dtype, torch.float32, torch.float32)]
    return [torch.empty(size, dtype=t, device="meta") for size, t in wide]


@pytest.mark.parametrize(("shape", "blocks"), [((48, 96, 96, 96), 16), ((16, 64, 224, 224), 16), ((64, 256, 56, 56), 16), ((24, 192, 72, 72), 16)])
@pytest.mark.parametrize("chip", ["H100", "H200"])
def test_large_channels_are_copied_into_the_shared_memory_of_a_cluster(chip, shape, blocks) -> None:
    (params,) = chosen(batch_norm_backward(), of_sizes(torch.bfloat16, shape), chip)
    assert (params.storage, params.is_copied, params.cluster_blocks) == ("shared", True, blocks)


@pytest.mark.parametrize(("shape", "chip"), [((256, 2048, 7, 7), "H100"), ((48, 96, 96, 96), "A100"), ((2, 3, 8, 8), "H100")])
def test_not_odd_images_nor_chips_without_clusters_nor_short_channels(shape, chip) -> None:
    (params,) = chosen(batch_norm_backward(), of_sizes(torch.bfloat16, shape), chip)
    assert not params.is_copied


def test_a_residual_waits_behind_rows_in_registers() -> None:
    inputs = [torch.empty(64, 256, 56, 56, dtype=torch.bfloat16, device="meta"), *[torch.empty(256, dtype=torch.bfloat16, device="meta")] * 2]
    (alone,), (beside,) = chosen(batch_norm(), inputs), chosen(batch_norm(residual=True), [*inputs, inputs[0]])
    assert (alone.storage, beside.storage) == ("shared", "register")
