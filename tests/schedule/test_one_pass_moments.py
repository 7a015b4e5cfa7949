"""Mean and squared deviations in one pass: which graphs have the pattern, and that rows that are read again give the values of two passes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.compiler import prepare
from weft.ir.values import TensorView
from weft.options import options
from weft.schedule.one_pass_moments import deviations, fold_moments
from weft.schedulers.inner_persistent import InnerPersistent
from weft.schedulers.persistent_params import PersistentParams

REREAD = PersistentParams(
    kind="2d", storage="reread", project_to_inputs=True, vector_elems=1, batches=0, unroll=2, bdimx=64, pad_to_warp=True, rows_per_block=1, row_unroll=1,
    bdimz=1, outer_batches=1, is_warp_only=False, max_registers=64,
)  # fmt: skip


def layer_norm(*, is_double: bool = False) -> FusionDefinition:
    dtype = DataType.Double if is_double else DataType.Float
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=dtype)
        var, mean = fd.ops.var_mean(x, [1], correction=0, keepdim=True)
        fd.add_output(fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(var, 1e-5))))
        fd.add_output(fd.ops.squeeze(mean, [1]))
    return fd


def force(monkeypatch: pytest.MonkeyPatch, **params: Any) -> None:
    """Let rows be read again."""
    monkeypatch.setattr(InnerPersistent, "choose_way", lambda *_: (replace(REREAD, **params), "forced by a test"))


def exact(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = x.double()
    mean = wide.mean(1, keepdim=True)
    return (wide - mean) / (wide.var(1, correction=0, keepdim=True) + 1e-5).sqrt(), mean.squeeze(1)


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("shape", [(3, 777), (1, 64), (5, 4), (2, 4096)])
def test_rows_read_again_are_right(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], blocks: int) -> None:
    force(monkeypatch, cluster_blocks=blocks)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 3 + 50
    fd = layer_norm()
    out, mean = fd.execute([x])
    assert "weft::Moments" in fd.fec.get_cuda_kernel([x])
    wanted, average = exact(x)
    assert (mean.double() - average).abs().max() <= 2.0**-22 * 50
    assert (out.double() - wanted).abs().max() <= 2.0**-18 * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize(("blocks", "batches", "phased"), [(1, 2, False), (2, 2, False), (4, 1, False), (2, 3, True)])
def test_rows_in_registers_are_right(monkeypatch: pytest.MonkeyPatch, blocks: int, batches: int, phased: bool) -> None:
    """Results are exchanged once, in the same order by all warps; rows that begin anywhere, too."""
    more = dict(storage="register", fewer_passes=True, cluster_blocks=blocks, batches=batches, vector_elems=4, bdimx=None, unroll=1, is_phased=phased)
    force(monkeypatch, **more)
    x = torch.randn((3, 1028 + phased), generator=torch.Generator().manual_seed(1)) * 3 + 50
    fd = layer_norm()
    with options(check="races"):
        out, mean = fd.execute([x])
    text = fd.fec.get_cuda_kernel([x])
    assert text.count("absorb_vector<4>") > 0 and text.count("reduce_cluster_rows<" if blocks > 1 else "reduce_rows<") == 1
    wanted, average = exact(x)
    assert (mean.double() - average).abs().max() <= 2.0**-22 * 50
    assert (out.double() - wanted).abs().max() <= 2.0**-18 * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize("columns", [2, 3000, 400000])
def test_a_variance_alone_is_one_reduction(columns: int) -> None:
    """Of a row that no block could keep, too."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        for value in fd.ops.var_mean(x, [1], correction=0, keepdim=False):
            fd.add_output(value)
    x = torch.randn((2, columns), generator=torch.Generator().manual_seed(5)) + 7
    var, mean = fd.execute([x])
    assert [r.scheduler for r in fd.fec.kernel_runtimes] == ["reduction"]
    assert (mean.double() - x.double().mean(1)).abs().max() <= 2.0**-22 * 7
    assert (var.double() - x.double().var(1, correction=0)).abs().max() <= 2.0**-18


@pytest.mark.parametrize("shape", [(1000, 33), (8192, 129), (65, 1), (3, 1000), (1, 7), (30011, 8)], ids=str)
@pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16, DataType.Double], ids=lambda d: d.name)
def test_deviations_of_columns_are_those_from_their_mean(shape: tuple[int, int], dtype: DataType) -> None:
    """Also where the mean is far larger than the deviations, of columns that threads, and blocks, share; sums of deviations have about the error of a sum."""
    is_double = dtype is DataType.Double
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=dtype)
        for value in fd.ops.var_mean(fd.ops.cast(x, DataType.Double if is_double else DataType.Float), [0], correction=0, keepdim=False):
            fd.add_output(value)
    made = torch.randn(shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    x = made * 3 + 1 if dtype is DataType.BFloat16 else made * 0.5 + 1e4
    x = x.to({DataType.Float: torch.float32, DataType.BFloat16: torch.bfloat16, DataType.Double: torch.float64}[dtype])
    with poisoned_outputs(), options(check="races"):
        var, mean = fd.execute([x])
    assert [r.scheduler for r in fd.fec.kernel_runtimes] == ["reduction"] and "weft::Moments" in fd.fec.get_cuda_kernel([x])
    unit = 2.0**-53 if is_double else 2.0**-24
    wanted = (x.double() - (0 if dtype is DataType.BFloat16 else 1e4)).var(0, correction=0)  # differences are exact
    assert ((mean.double() - x.double().mean(0)).abs() <= 4 * unit * x.double().abs().amax(0)).all()
    rounded = 2 * unit * x.double().mean(0)  # of means of up to 64 blocks, from which states of two blocks are combined
    far = rounded**2 + rounded * (wanted / max(1, shape[0] / 64)).sqrt()
    assert ((var.double() - wanted).abs() <= 512 * unit * wanted + far).all()


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_columns_with_infinities_and_nan(value: float) -> None:
    """Whichever thread has them; the other columns of a vector do not mind."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        for result in fd.ops.var_mean(x, [0], correction=0, keepdim=False):
            fd.add_output(result)
    x = torch.randn(700, 24, generator=torch.Generator().manual_seed(8))
    x[0, 3] = x[699, 5] = x[333, 20] = value
    with poisoned_outputs():
        var, mean = fd.execute([x])
    is_hit = torch.isin(torch.arange(24), torch.tensor([3, 5, 20]))
    assert torch.equal(mean[is_hit].nan_to_num(7.0), x[:, is_hit].mean(0).nan_to_num(7.0)) and var[is_hit].isnan().all()
    assert torch.allclose(var[~is_hit].double(), x[:, ~is_hit].double().var(0, correction=0), rtol=1e-6, atol=0)


def test_vectors_are_absorbed(monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, vector_elems=4)
    x = torch.randn(4, 1028, generator=torch.Generator().manual_seed(2))
    fd = layer_norm()
    out, _ = fd.execute([x])
    assert "absorb_vector<4>" in fd.fec.get_cuda_kernel([x])
    assert (out.double() - exact(x)[0]).abs().max() <= 2.0**-19


def test_a_first_element_far_from_the_others_costs_no_more_than_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch)
    x = torch.randn(2, 4096, generator=torch.Generator().manual_seed(3))
    x[:, :64] = 1e4  # what each thread sees first
    out, _ = layer_norm().execute([x])
    wanted = exact(x)[0]
    assert (out.double() - wanted).abs().max() <= 4096 * 2.0**-24 * wanted.abs().max()


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_infinities_and_nan_are_as_in_torch(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    force(monkeypatch)
    x = torch.randn(2, 300, generator=torch.Generator().manual_seed(4))
    x[0, 0] = x[1, 170] = value
    out, mean = layer_norm().execute([x])
    assert torch.equal(mean.nan_to_num(7.0), x.mean(1).nan_to_num(7.0)) and out.isnan().all()


@pytest.mark.parametrize("values", [[math.inf, math.inf], [-math.inf, -math.inf], [math.inf, -math.inf], [math.inf, math.nan], [3e38, 3e38, 3e38, -3e38]])
def test_the_mean_of_columns_is_that_of_their_sum(values: list[float]) -> None:
    """Also where two states meet whose means are equal infinities, or further apart than any number."""
    with FusionDefinition() as fd:
        mean, squares, _ = fd.ops.welford(fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float), [0])
        fd.add_output(mean)
        fd.add_output(squares)
    x = torch.zeros(len(values), 4)
    x[:, 1] = torch.tensor(values)
    mean, squares = fd.execute([x])
    assert "weft::Moments" in fd.fec.get_cuda_kernel([x])
    wanted = x.double().mean(0)
    assert torch.allclose(mean.double(), wanted, rtol=2.0**-22, atol=0, equal_nan=True)
    assert not squares[1].isfinite() and (squares[[0, 2, 3]] == 0).all()


def test_equal_elements_have_no_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch)
    out, mean = layer_norm(is_double=True).execute([torch.full((3, 1000), 0.1, dtype=torch.float64)])
    assert (out.abs() <= 1e-10).all() and ((mean - 0.1).abs() <= 1e-15).all()


def test_a_mean_over_other_axes_is_no_pair() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        means = fd.ops.div(fd.ops.sum(x, [0]), 5.0)
        apart = fd.ops.sub(x, fd.ops.broadcast_in_dim(means, x.shape(), [1]))
        fd.add_output(fd.ops.sum(fd.ops.mul(apart, apart), [1]))
    assert not deviations(prepare(fd.fusion).fusion)


def test_fields_replace_both_reductions() -> None:
    fusion, _ = prepare(layer_norm().fusion).fusion.clone()
    assert fold_moments(fusion) == 1
    kinds = [expr.attributes["kind"] for expr in fusion.tensor_exprs() if expr.op_name in ("sum", "moments")]
    assert kinds == ["moments"] and all(isinstance(t, TensorView) for t in fusion.outputs())
