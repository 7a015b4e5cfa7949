"""Sums of parts of a row in the kernel that keeps the row: backward of group norm in one reading of its inputs. Compared with torch in float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.arch import H200
from weft.graph.nested_sums import in_two_steps
from weft.options import options
from weft.runtime.steps import PlanTable
from weft.schedulers import inner_persistent, nested_rows
from weft.schedulers.persistent_params import PersistentParams, RowsOf

TORCH = {DataType.BFloat16: torch.bfloat16, DataType.Half: torch.float16, DataType.Float: torch.float32, DataType.Double: torch.float64}
ERRORS = {torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float32: 2e-6, torch.float64: 1e-14}
PARAMS = PersistentParams(
    kind="3d", storage="register", project_to_inputs=True, vector_elems=8, batches=1, unroll=1, bdimx=None, pad_to_warp=True, rows_per_block=1, row_unroll=1,
    bdimz=1, outer_batches=1, is_warp_only=False, max_registers=128,
)  # fmt: skip


def group_norm_backward(dtype: DataType = DataType.Float, pixels: int = 2) -> FusionDefinition:
    """Gradients of the input, the weight and the bias. Tensors are [samples, groups, channels of a group, pixels ...]."""
    with FusionDefinition() as fd:
        ops, rank = fd.ops, 3 + pixels
        wide = DataType.Double if dtype is DataType.Double else DataType.Float
        types = [(rank, dtype), (rank, dtype), (2, dtype), (2, wide), (2, wide)]
        dy, x, weight, mean, rstd = (ops.cast(fd.define_tensor([-1] * n, contiguity=True, dtype=d), wide) for n, d in types)
        within, across = list(range(2, rank)), [0, *range(3, rank)]
        mean, rstd = (ops.broadcast_in_dim(t, x.shape(), [0, 1]) for t in (mean, rstd))
        normal, scaled = ops.mul(ops.sub(x, mean), rstd), ops.mul(dy, ops.broadcast_in_dim(weight, x.shape(), [1, 2]))
        plain, tilted = (ops.mean(t, within, keepdim=True) for t in (scaled, ops.mul(scaled, normal)))
        dx = ops.mul(rstd, ops.sub(scaled, ops.add(plain, ops.mul(normal, tilted))))
        for t in (dx, ops.sum(ops.mul(dy, normal), across), ops.sum(dy, across)):
            fd.add_output(ops.cast(t, dtype))
    return fd


def given(dtype: DataType, *shape: int, offset: int = 0) -> list[torch.Tensor]:
    """Gradient, input, weight, mean, 1 / standard deviation; offset: elements that the first tensors' addresses are off."""
    made = torch.Generator().manual_seed(sum(shape))

    def numbers(*sizes: int) -> torch.Tensor:
        flat = torch.randn(offset + torch.Size(sizes).numel(), generator=made, dtype=torch.float64).to(TORCH[dtype])
        return flat[offset:].view(sizes)

    dy, x, weight = numbers(*shape), numbers(*shape), numbers(*shape[1:3])
    var, mean = torch.var_mean(x.double(), tuple(range(2, len(shape))), correction=0)
    wide = torch.float64 if dtype is DataType.Double else torch.float32
    return [dy, x, weight, mean.to(wide), (var + 1e-5).rsqrt().to(wide)]


def gradients(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    """Torch's, in float64."""
    dy, x, weight = (t.double() for t in (dy, x, weight))
    bias = torch.zeros_like(weight)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    y = torch.nn.functional.group_norm(x.flatten(1, 2), x.shape[1], weight.flatten(), bias.flatten())
    return list(torch.autograd.grad(y.view(x.shape), leaves, dy))


def magnitudes(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> list[float]:
    """Of what each gradient adds up: where terms cancel, errors are those of the terms."""
    dy, x, weight, mean, rstd = (t.double().abs() for t in (dy, x, weight, mean, rstd))
    mean, rstd = (t.view(*t.shape, *[1] * (x.dim() - 2)) for t in (mean, rstd))
    scaled, across = dy * weight.view(*weight.shape, *[1] * (x.dim() - 3)) * rstd, (0, *range(3, x.dim()))
    return [float(t.detach().norm()) for t in (scaled, (dy * (x + mean) * rstd).sum(across), dy.sum(across))]


def checked(fd: FusionDefinition, inputs: list[torch.Tensor]) -> list[str]:
    """Run twice, bit for bit the same; compare with float64; return the schedulers of the kernels, that of the rows last."""
    with poisoned_outputs(), options(check="races", strict_schedules=True):
        first, second = fd.execute(inputs), fd.execute(inputs)
    for out, again, want, size in zip(first, second, gradients(*inputs[:3]), magnitudes(*inputs)):
        assert torch.equal(out, again)
        assert float((out.double() - want).norm()) <= ERRORS[out.dtype] * size
    return sorted((r.scheduler for r in fd.fec.kernel_runtimes), reverse=True)


@pytest.fixture
def forced(monkeypatch):
    """Let rows whose parts are folded alone have these params, however small they are."""

    def force(**fields):
        def choose(analysis, sizes, alignment_bits, arch):
            facts = analysis.facts(sizes, {}, arch.max_access_bits)
            params = dataclasses.replace(PARAMS, vector_elems=RowsOf(facts, arch).vector, still_axes=facts.still_axes, **fields)
            return nested_rows.narrowed(params, analysis, sizes, alignment_bits, arch), "forced"

        monkeypatch.setattr(inner_persistent, "why_not_worth", lambda *_: None)
        monkeypatch.setattr(inner_persistent, "choose_nested", choose)

    return force


@pytest.mark.parametrize(("shape", "fields"), [
    ((2, 2, 5, 7, 8), dict(outer_batches=3, bdimz=2)),  # more threads than channels
    ((1, 3, 4, 5, 24), dict(outer_batches=2, bdimz=2, batches=2)),
    ((2, 2, 5, 4, 16), dict(outer_batches=2, bdimz=2, cluster_blocks=2)),  # blocks with three channels and with two
    ((1, 2, 3, 4, 16), dict(outer_batches=1, bdimz=1, cluster_blocks=4)),  # a block with none
    ((2, 2, 5, 3, 40), dict(outer_batches=3, bdimz=2, cluster_blocks=2, along_run=True)),
    ((1, 2, 3, 9, 24), dict(outer_batches=3, bdimz=1, cluster_blocks=4, along_run=True)),  # blocks without an element
    ((2, 1, 2, 4, 72), dict(outer_batches=1, bdimz=2, batches=2, cluster_blocks=16, along_run=True)),
    ((2, 3, 4, 7, 7), dict(outer_batches=2, bdimz=2, batches=2)),  # odd images: single elements
])  # fmt: skip
@pytest.mark.parametrize("dtype", [DataType.BFloat16, DataType.Float])
def test_channels_of_a_group_are_summed_beside_the_group(forced, dtype, shape, fields) -> None:
    forced(**fields)
    assert checked(group_norm_backward(dtype), given(dtype, *shape)) == ["reduction", "inner_persistent"]


@pytest.mark.parametrize("dtype", [DataType.Half, DataType.Double])
@pytest.mark.parametrize("along", [False, True])
def test_other_types(forced, dtype, along) -> None:
    forced(outer_batches=2, bdimz=2, cluster_blocks=2, along_run=along)
    assert checked(group_norm_backward(dtype), given(dtype, 2, 2, 5, 4, 24)) == ["reduction", "inner_persistent"]


@pytest.mark.parametrize("shape", [(1, 1, 1, 8, 8), (1, 1, 3, 1, 1), (2, 1, 2, 1, 1), (3, 2, 2, 1, 33), (2, 2, 1, 4, 8)])
def test_one_group_one_channel_one_pixel(forced, shape) -> None:
    """One row; rows of one run; runs of one element."""
    forced(outer_batches=2, bdimz=2, batches=2)
    checked(group_norm_backward(), given(DataType.Float, *shape))


@pytest.mark.parametrize("along", [False, True])
def test_tensors_that_begin_anywhere_have_the_same_threads(forced, along) -> None:
    forced(outer_batches=2, bdimz=2, cluster_blocks=2, along_run=along)
    fd = group_norm_backward(DataType.BFloat16)
    for offset in (0, 1, 2):
        assert checked(fd, given(DataType.BFloat16, 2, 2, 4, 4, 24, offset=offset))[-1] == "inner_persistent"


def test_each_input_is_loaded_once_and_sums_of_all_runs_share_a_barrier(forced) -> None:
    forced(outer_batches=3, bdimz=2)
    fd = group_norm_backward(DataType.BFloat16)
    checked(fd, given(DataType.BFloat16, 2, 2, 5, 7, 8))
    (text,) = (r.program.text for r in fd.fec.kernel_runtimes if r.scheduler == "inner_persistent")
    assert text.count("load_global_vector<8") == 2
    assert text.count("reduce_rows<weft::Sum, 6, ") == 1 and text.count("reduce_rows<weft::Sum, 2, ") == 1 and text.count("reduce_rows<") == 2


def test_parts_of_other_normalizations_are_folded_beside_them(forced) -> None:
    """What a user writes, with no sums over samples: a softmax over two axes with the maximum and the sum of its inner one."""
    forced(outer_batches=2, bdimz=2)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1], contiguity=True)
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1, 2], True)))
        fd.add_output(fd.ops.div(e, fd.ops.sum(e, [1, 2], True)))
        fd.add_output(fd.ops.max(x, [2]))
        fd.add_output(fd.ops.sum(fd.ops.mul(x, x), [2]))
    x = torch.randn(3, 4, 40)
    with poisoned_outputs(), options(check="races", strict_schedules=True):
        soft, most, squares = fd.execute([x])
    assert [r.scheduler for r in fd.fec.kernel_runtimes] == ["inner_persistent"]
    wide = x.double()
    torch.testing.assert_close(soft.double(), wide.flatten(1).softmax(1).view(x.shape), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(squares.double(), (wide * wide).sum(2), rtol=1e-5, atol=0)
    assert torch.equal(most, x.amax(2))


# ---------------------------------------------------------------- the choice, which runs nothing
def plans(shapes) -> list[list[str]]:
    """Return, for each shape, what folds in each kernel of its plan: one symbolic definition serves all."""
    fusion = group_norm_backward(DataType.BFloat16).fusion
    table, out = PlanTable(fusion), []
    for shape in shapes:
        env = {}
        for tensor, sizes in zip(fusion.inputs(), (shape, shape, shape[1:3], shape[:2], shape[:2])):
            env.update((axis.sym, size) for axis, size in zip(tensor.get_logical_domain(), sizes))
        out.append([step.fusion for step in table.plan_for(env, H200).kernels])
    return out


LARGE, TOO_LONG, SMALL = (32, 32, 16, 64, 64), (4, 4, 64, 256, 256), (1, 1, 2, 4, 8)


def test_one_kernel_where_registers_hold_a_group_and_the_cut_as_it_was_elsewhere() -> None:
    """In any order of calls: a plan that was made for one size is not kept for another where it is not the best."""
    found = plans([TOO_LONG, LARGE, SMALL, LARGE, TOO_LONG])
    folds = [[sum(e.op_name == "sum" for e in part.tensor_exprs()) for part in parts] for parts in found]
    assert [sorted(f) for f in folds] == [[2, 2], [2, 4], [2, 2], [2, 4], [2, 2]]


def test_sums_are_cut_only_beside_rows_that_share_their_innermost_axes() -> None:
    """Not where nothing is spread again, and not where rows are those of the sum."""

    def defined(spread: bool, axes: list[int]) -> FusionDefinition:
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1, -1, -1], contiguity=True)
            total = fd.ops.sum(x, [1, 2], keepdim=True)
            fd.add_output(fd.ops.mul(x, total) if spread else total)
            fd.add_output(fd.ops.sum(fd.ops.mul(x, x), axes))
        return fd

    cut = [bool(in_two_steps(defined(spread, axes).fusion)[1]) for spread, axes in ((True, [0, 2]), (False, [0, 2]), (True, [1, 2]), (True, [2]), (True, [0]))]
    assert cut == [True, False, False, False, False]


def test_sums_over_rows_and_parts_of_them_are_cut() -> None:
    """Only beside rows that are spread again, and not where the sum is over all, over rows alone, or not over all rows."""

    def defined(spread: bool, axes: list[int]) -> FusionDefinition:
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1, -1, -1, -1], contiguity=True)
            total = fd.ops.sum(x, [2, 3], keepdim=True)
            fd.add_output(fd.ops.mul(x, total) if spread else total)
            turned = fd.ops.permute(fd.ops.mul(x, x), [0, 2, 1, 3])
            fd.add_output(fd.ops.sum(turned, [(0, 2, 1, 3)[a] for a in axes]))
        return fd

    cases = ((True, [0, 1, 2]), (False, [0, 1, 2]), (True, [0, 1]), (True, [0, 2]), (True, [0, 1, 3]))
    assert [bool(in_two_steps(defined(spread, axes).fusion)[1]) for spread, axes in cases] == [True, False, False, False, True]


@pytest.mark.parametrize("shape", [(3, 5, 1, 77), (2, 8, 1, 12799)], ids=str)
@pytest.mark.parametrize("dtype", [DataType.BFloat16, DataType.Float], ids=str)
def test_groups_of_one_channel(dtype: DataType, shape: tuple[int, ...]) -> None:
    """As a framework writes them: the axis of a group's channels has one element, and sums of groups lack it. One kernel reads the inputs, once."""
    samples, groups, _, pixels = shape
    with FusionDefinition() as fd:
        ops = fd.ops
        dy, x = (ops.cast(fd.define_tensor([-1, -1, 1, -1], contiguity=[True, True, None, True], dtype=dtype), DataType.Float) for _ in range(2))
        weight = ops.broadcast_in_dim(ops.cast(fd.define_tensor([-1], contiguity=True, dtype=dtype), DataType.Float), x.shape(), [1])
        scaled = ops.mul(dy, weight)
        means = [ops.broadcast_in_dim(ops.mean(ops.squeeze(t, [2]), [2]), x.shape(), [0, 1]) for t in (scaled, ops.mul(scaled, x))]
        outs = [ops.sub(ops.sub(scaled, means[0]), ops.mul(x, means[1])), ops.sum(ops.mul(dy, x), [0, 2, 3]), ops.sum(dy, [0, 2, 3])]
        for t in outs:
            fd.add_output(ops.cast(t, dtype))
    given = [torch.randn(shape).to(TORCH[dtype]), torch.randn(shape).to(TORCH[dtype]), torch.randn(groups).to(TORCH[dtype])]
    with poisoned_outputs():
        fd.validate(given)
    read = [r for r in fd.fec.kernel_runtimes if {"T0", "T1"} <= set(r.program.text.replace(",", " ").replace("(", " ").split())]
    assert len(read) == 1 and 1 <= len(fd.fec.kernel_runtimes) <= 2
