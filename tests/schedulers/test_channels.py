"""Batch norm and group norm: channels and groups whose rows lie in several runs of memory, kept in the registers of a block or of a cluster."""

from __future__ import annotations

import pytest
from channel_cases import BF16, FLOAT, batch_norm, checked, group_norm, with_params
from row_fusions import numbers

from weft.options import options


def batch_inputs(dtype, shape, channel=1, residual=False):
    x = numbers(dtype, *shape)
    c = shape[channel]
    return [x, numbers(dtype, c), numbers(dtype, c + 1)[1:], *([numbers(dtype, *shape) * 2] if residual else [])]


@pytest.mark.parametrize(("shape", "cluster", "outer", "inner", "residual"), [
    ((7, 2, 16, 32), 2, 2, 2, True), ((5, 3, 1, 72), 4, 1, 1, False), ((1, 2, 16, 16), 1, 1, 1, True), ((3, 2, 16, 24), 16, 1, 2, False),
])  # fmt: skip
def test_runs_of_a_channel_are_spread_over_a_cluster(shape, cluster, outer, inner, residual) -> None:
    """Images that the blocks divide and that they do not; blocks without any image."""
    fd = with_params(batch_norm(residual=residual), kind="3d", cluster_blocks=cluster, outer_batches=outer, batches=inner, bdimx=None, rows_per_block=1, pad_to_warp=True,
                     is_warp_only=False, weights="late", storage="register", fill="partial", is_phased=False)  # fmt: skip
    with options(check="races"):
        runtime = checked(fd, batch_inputs(BF16, shape, residual=residual))
    assert runtime.scheduler == "inner_persistent" and not any(t in runtime.program.text for t in (" % ", "remainder"))


@pytest.mark.parametrize("shape", [(4, 6, 8, 8), (2, 3, 7, 7), (1, 1, 1, 1), (3, 1, 16, 16), (2, 4, 1, 1), (9, 2, 16, 24)])
def test_batch_norm(shape) -> None:
    dtype = BF16 if shape[0] % 2 else FLOAT
    checked(batch_norm(dtype, residual=True), batch_inputs(dtype, shape, residual=True))


@pytest.mark.parametrize("shape", [(3, 8, 4, 8), (2, 6, 7, 7), (1, 2, 8, 8), (2, 4, 1, 1), (1, 2, 1, 1), (2, 16, 16, 20)])
def test_group_norm(shape) -> None:
    dtype = BF16 if shape[0] % 2 else FLOAT
    checked(group_norm(2, shape, dtype), batch_inputs(dtype, shape))


def test_weights_of_a_group_are_read_once_for_each_vector() -> None:
    shape = (2, 8, 8, 16)
    text = checked(group_norm(2, shape), batch_inputs(BF16, shape)).program.text
    assert text.count("load_global<") == 2 and text.count("load_global_vector<") == 1


@pytest.mark.parametrize(("cluster", "outer", "inner"), [(1, 2, 1), (2, 2, 1), (4, 1, 2)])
def test_channels_of_a_group_are_spread_over_a_cluster(cluster, outer, inner) -> None:
    shape = (2, 10, 8, 40)
    fd = with_params(group_norm(2, shape), kind="3d", cluster_blocks=cluster, outer_batches=outer, batches=inner, bdimx=None, rows_per_block=1, pad_to_warp=True,
                     is_warp_only=False, weights="late", storage="register", fill="partial")  # fmt: skip
    with options(check="races"):
        checked(fd, batch_inputs(BF16, shape))


def runs_of(cluster: int, outer: int, inner: int, **fields):
    return dict(kind="3d", cluster_blocks=cluster, outer_batches=outer, batches=inner, bdimx=None, rows_per_block=1, pad_to_warp=True, is_warp_only=False,
                weights="late", storage="register", fill="partial", is_phased=False, **fields)  # fmt: skip


@pytest.mark.parametrize(("shape", "cluster", "outer", "inner"), [((3, 2, 16, 40), 2, 3, 1), ((5, 2, 1, 72), 4, 2, 1), ((2, 1, 30, 32), 4, 1, 2)])
def test_blocks_of_a_cluster_share_each_run(shape, cluster, outer, inner) -> None:
    """Runs that the blocks divide and that they do not; blocks without any element."""
    fd = with_params(batch_norm(residual=True), **runs_of(cluster, outer, inner, along_run=True, unswitch=True))
    with options(check="races"):
        runtime = checked(fd, batch_inputs(BF16, shape, residual=True))
    assert runtime.program.cluster == (cluster, 1, 1) and not any(t in runtime.program.text for t in (" % ", "remainder"))


@pytest.mark.parametrize(("cluster", "along"), [(1, False), (2, False), (4, True)])
@pytest.mark.parametrize("residual", [False, True])
def test_moments_of_a_channel_are_exchanged_once(cluster, along, residual) -> None:
    shape = (5, 2, 14, 16)
    fd = with_params(batch_norm(residual=residual), **runs_of(cluster, 2, 1, along_run=along, fewer_passes=True, unswitch=True))
    with options(check="races"):
        text = checked(fd, batch_inputs(BF16, shape, residual=residual)).program.text
    assert text.count("reduce_cluster_rows<" if cluster > 1 else "reduce_rows<") == 1 and "FoldMoments, 1" in text


def test_moments_of_a_group_whose_blocks_share_each_channel() -> None:
    shape = (2, 6, 8, 40)
    with options(check="races"):
        checked(with_params(group_norm(2, shape), **runs_of(2, 3, 1, along_run=True, fewer_passes=True)), batch_inputs(BF16, shape))
