"""Max and sum of exponentials in one pass: the pattern, the kernels, and values that are infinite or no number."""

from __future__ import annotations

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.schedule.online_softmax import exp_sums

TORCH = {DataType.Float: torch.float32, DataType.BFloat16: torch.bfloat16, DataType.Half: torch.float16, DataType.Double: torch.float64}


def logsumexp(fd: FusionDefinition, x, dims, *, keepdim: bool = False):  # noqa: ANN001, ANN201
    """log(sum(exp(x - max))) + max, as a user writes it."""
    largest = fd.ops.max(x, dims=dims, keepdim=True)
    total = fd.ops.sum(fd.ops.exp(x - largest), dims=dims, keepdim=keepdim)
    return fd.ops.log(total) + (largest if keepdim else fd.ops.squeeze(largest, dims=dims))


def defined(dtype: DataType, rank: int = 2, dims: tuple[int, ...] = (1,), contiguity: bool = True) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1] * rank, contiguity=contiguity, dtype=dtype)
        wide = fd.ops.cast(x, dtype=DataType.Float) if dtype in (DataType.BFloat16, DataType.Half) else x
        fd.add_output(logsumexp(fd, wide, list(dims)))
    return fd


LOGSUMEXP = {dtype: defined(dtype) for dtype in (DataType.Float, DataType.BFloat16, DataType.Double)}


def run(fd: FusionDefinition, inputs: list[torch.Tensor], is_online: bool = True) -> list[torch.Tensor]:
    """Run with all checks, and say whether the kernel folds both together."""
    out = fd.execute(inputs, check="races")
    text = "\n".join(runtime.program.text for runtime in fd.fec.kernel_runtimes)
    assert ("FoldMaxSum" in text) is is_online
    return out


@pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16, DataType.Double])
@pytest.mark.parametrize(("rows", "columns"), [(3, 2), (5, 33), (3, 4099), (7, 2048)])
def test_logsumexp_reads_its_rows_once(dtype: DataType, rows: int, columns: int) -> None:
    x = (torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns)) * 8).to(TORCH[dtype])
    (y,) = run(LOGSUMEXP[dtype], [x])
    roundoff = 2.0**-53 if dtype is DataType.Double else 2.0**-24
    wanted = torch.logsumexp(x.double(), 1)
    assert ((y.double() - wanted).abs() <= roundoff * (4 * wanted.abs() + 64)).all()


@pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16, DataType.Double])
def test_rows_of_one_element_fold_nothing(dtype: DataType) -> None:
    x = torch.randn(3, 1, generator=torch.Generator().manual_seed(2)).to(TORCH[dtype])
    (sums,) = run(defined(dtype), [x], is_online=False)
    (logs,) = run(sum_of_log_probabilities(dtype), [x], is_online=False)
    assert torch.equal(sums.double(), x.double().squeeze(1)) and torch.equal(logs, torch.zeros_like(logs))


def test_values_that_are_no_numbers_come_out_as_in_two_passes() -> None:
    """x - max is no number where the maximum is infinite; in torch, too. A vector of -infinity alone is none of these."""
    inf, nan = float("inf"), float("nan")
    x = torch.randn(8, 2048)
    x[0], x[1, 7], x[2, 2000], x[3, 9:1500], x[4, :2047], x[5, 3], x[6] = -inf, inf, nan, -inf, -inf, -inf, -3e38
    x[7, 5], x[7, 1900] = inf, nan
    (y,) = run(LOGSUMEXP[DataType.Float], [x])
    largest = x.amax(1, keepdim=True)
    wanted = ((x - largest).exp().sum(1, keepdim=True).log() + largest).squeeze(1)
    assert torch.isnan(wanted).tolist() == [True, True, True, False, False, False, False, True]
    torch.testing.assert_close(y, wanted, equal_nan=True)


def test_ascending_rows_rescale_at_every_vector_within_the_bound() -> None:
    x = torch.arange(4 * 8192, dtype=torch.float32).reshape(4, 8192) * 1e-3
    (y,) = run(LOGSUMEXP[DataType.Float], [x])
    wanted = torch.logsumexp(x.double(), 1)
    assert ((y.double() - wanted).abs() <= 2.0**-24 * wanted.abs() + 2.0**-23 * 64).all()


def test_no_rows() -> None:
    fd = LOGSUMEXP[DataType.Float]
    assert fd.execute([torch.zeros(0, 33)])[0].shape == (0,)


def test_rows_apart_in_memory_expanded_rows_and_several_axes() -> None:
    wide = torch.randn(6, 80, generator=torch.Generator().manual_seed(1))
    apart = defined(DataType.Float, contiguity=[False, True])
    torch.testing.assert_close(run(apart, [wide[:, 3:70]])[0], torch.logsumexp(wide[:, 3:70], 1))
    expanded = defined(DataType.Float, contiguity=[None, True])
    torch.testing.assert_close(run(expanded, [wide[:1].expand(5, 80)])[0], torch.logsumexp(wide[:1].expand(5, 80), 1))
    both = defined(DataType.Float, 3, (0, 2))
    x = torch.randn(3, 5, 70)
    torch.testing.assert_close(run(both, [x])[0], torch.logsumexp(x, (0, 2)))


@pytest.mark.parametrize("classes", [5, 77, 4096])
def test_cross_entropy_with_smoothing_and_ignored_rows_in_one_pass(classes: int) -> None:
    """Max, sum of exponentials, sum of logits and the gathered logit: the logits are read once."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.BFloat16)
        t = fd.define_tensor(shape=[-1], contiguity=True, dtype=DataType.Int)
        wide = fd.ops.cast(x, dtype=DataType.Float)
        lse = logsumexp(fd, wide, [1])
        safe = fd.ops.where(fd.ops.eq(t, -100), 0, t)
        picked = fd.ops.cast(fd.ops.squeeze(fd.ops.take_along_axis(x, fd.ops.unsqueeze(safe, 1), 1), dims=[1]), dtype=DataType.Float)
        smooth = lse - fd.ops.sum(wide, [1]) / fd.ops.cast(x.size(1), dtype=DataType.Double)
        loss = (lse - picked) * 0.9 + smooth * 0.1
        fd.add_output(fd.ops.where(fd.ops.eq(t, -100), 0.0, loss))
    logits = (torch.randn(6, classes, generator=torch.Generator().manual_seed(classes)) * 3).bfloat16()
    target = torch.randint(0, classes, (6,))
    target[2] = -100
    (y,) = run(fd, [logits, target])
    wanted = torch.nn.functional.cross_entropy(logits.double(), target, reduction="none", label_smoothing=0.1, ignore_index=-100)
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("more", [{}, dict(label_smoothing=0.1), dict(ignore_index=3)])
def test_the_losses_composite_is_one_pass(more: dict) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.BFloat16)
        t = fd.define_tensor(shape=[-1], contiguity=True, dtype=DataType.Int)
        fd.add_output(fd.ops.cast(fd.ops.cross_entropy(x, t, reduction="none", **more), dtype=DataType.Float))
    logits = (torch.randn(6, 300, generator=torch.Generator().manual_seed(4)) * 3).bfloat16()
    logits[1, 5:9] = float("-inf") if not more else 0.0
    target = torch.tensor([3, 7, 3, 100, 299, 0])
    (y,) = run(fd, [logits, target])
    wanted = torch.nn.functional.cross_entropy(logits.double(), target, reduction="none", **more)
    torch.testing.assert_close(y.double(), wanted, rtol=2**-8, atol=1e-2)


def test_rows_of_infinities_as_torchs_logsumexp() -> None:
    inf = float("inf")
    x = torch.randn(5, 400)
    x[0], x[1, 3], x[2, 9], x[3, 1:] = -inf, inf, float("nan"), -inf
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.logsumexp(fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float), [1]))
    torch.testing.assert_close(run(fd, [x])[0], torch.logsumexp(x, 1), equal_nan=True)


def found(build) -> int:  # noqa: ANN001
    with FusionDefinition() as fd:
        build(fd, fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float))
    return len(exp_sums(fd.fusion))


def test_only_exponentials_below_their_own_maximum_count() -> None:
    assert found(lambda fd, x: fd.add_output(logsumexp(fd, x, [1]))) == 1
    assert found(lambda fd, x: fd.add_output(logsumexp(fd, x, [0, 1]))) == 1
    assert found(lambda fd, x: fd.add_output(fd.ops.sum(fd.ops.exp(x - fd.ops.max(x, [1], True)), [0]))) == 0
    assert found(lambda fd, x: fd.add_output(fd.ops.sum(fd.ops.exp(x - fd.ops.max(x * 2.0, [1], True)), [1]))) == 0
    assert found(lambda fd, x: fd.add_output(fd.ops.sum(fd.ops.exp(x - fd.ops.min(x, [1], True)), [1]))) == 0
    assert found(lambda fd, x: fd.add_output(fd.ops.sum(fd.ops.exp2(x - fd.ops.max(x, [1], True)), [1]))) == 0
    assert found(lambda fd, x: fd.add_output(fd.ops.sum(fd.ops.exp(fd.ops.max(x, [1], True) - x), [1]))) == 0


def test_a_softmax_that_keeps_its_rows_stays_as_it_was() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
        shares = fd.ops.exp(x - fd.ops.max(x, [1], True))
        fd.add_output(shares / fd.ops.sum(shares, [1], True))
    x = torch.randn(3, 500)
    torch.testing.assert_close(run(fd, [x], is_online=False)[0], torch.softmax(x, 1))


# ---------------------------------------------------------------- sums of log probabilities: smoothed labels
def sum_of_log_probabilities(dtype: DataType, *, log_last: bool = False) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=dtype)
        wide = fd.ops.cast(x, dtype=DataType.Float) if dtype in (DataType.BFloat16, DataType.Half) else x
        below = wide - fd.ops.max(wide, dims=[1], keepdim=True)
        total = fd.ops.sum(fd.ops.exp(below), dims=[1])
        spread = fd.ops.log(fd.ops.broadcast(total, [False, True])) if log_last else fd.ops.broadcast(fd.ops.log(total), [False, True])
        fd.add_output(fd.ops.sum(below - spread, dims=[1]))
    return fd


SUMS = {dtype: sum_of_log_probabilities(dtype) for dtype in (DataType.Float, DataType.BFloat16, DataType.Double)}


@pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16, DataType.Double])
@pytest.mark.parametrize("shift", [0.0, 5000.0])
@pytest.mark.parametrize(("rows", "columns"), [(3, 2), (5, 33), (3, 4099), (7, 2048)])
def test_log_probabilities_are_summed_up_in_one_pass(dtype: DataType, shift: float, rows: int, columns: int) -> None:
    """Far from 0, too, where sum(x) and n * max(x) have few digits of their difference."""
    x = (torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns)) * 8 + shift).to(TORCH[dtype])
    (y,) = run(SUMS[dtype], [x])
    assert "FoldMaxSumBelow" in SUMS[dtype].fec.kernel_runtimes[0].program.text and len(SUMS[dtype].fec.kernel_runtimes) <= 4
    roundoff = 2.0**-53 if dtype is DataType.Double else 2.0**-24
    wanted = torch.log_softmax(x.double(), 1).sum(1)
    assert ((y.double() - wanted).abs() <= roundoff * 64 * wanted.abs()).all()  # terms of one sign: a tree of sums, and as many rescalings


def test_rows_that_ascend_or_descend_lose_no_digits() -> None:
    x = torch.arange(2 * 8192, dtype=torch.float32).reshape(2, 8192) * 1e-3
    x = torch.cat([x, x.flip(1)])
    (y,) = run(sum_of_log_probabilities(DataType.Float, log_last=True), [x])
    wanted = torch.log_softmax(x.double(), 1).sum(1)
    assert ((y.double() - wanted).abs() <= 2.0**-24 * 64 * wanted.abs()).all()


def test_log_probabilities_that_are_no_numbers_are_summed_up_as_in_torch() -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.randn(9, 2048)
    x[0], x[1, 7], x[2, 2000], x[3, 9:1500], x[4, :2047], x[5, 3], x[6] = -inf, inf, nan, -inf, -inf, -inf, -3e38
    x[7, 5], x[7, 1900] = inf, nan
    (y,) = run(SUMS[DataType.Float], [x])
    torch.testing.assert_close(y, torch.log_softmax(x, 1).sum(1), equal_nan=True)


def test_a_sum_of_differences_from_something_else_is_a_sum_of_its_own() -> None:
    """Sums with another shift, another logarithm or over other axes are not part of the state."""

    def other(fd: FusionDefinition, kind: str) -> None:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        below = x - fd.ops.max(x, dims=[1], keepdim=True)
        total = fd.ops.sum(fd.ops.exp(below), dims=[1], keepdim=True)
        spread = {"log2": fd.ops.log2, "twice": lambda t: fd.ops.log(fd.ops.log(t)), "none": lambda t: t}.get(kind, fd.ops.log)(total)
        fd.add_output(fd.ops.sum(below - spread, dims=[0] if kind == "columns" else [1]))

    x = torch.randn(6, 50)
    for kind in ("log2", "twice", "none", "columns"):
        with FusionDefinition() as fd:
            other(fd, kind)
        fd.validate([x])
        assert all("FoldMaxSumBelow" not in r.program.text for r in fd.fec.kernel_runtimes)


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (1, 8), (64, 96), (7, 1)])
@pytest.mark.parametrize("keepdim", [True, False])
def test_a_softmax_of_merged_axes_finds_both_in_one_pass(rows: int, columns: int, keepdim: bool) -> None:
    """x.flatten().softmax(0): the axis that the maximum keeps stands for two in the kernel, and is broadcast in two steps."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([rows, columns], contiguity=True, dtype=DataType.Float)
        flat = fd.ops.reshape(x, [rows * columns])
        largest = fd.ops.max(flat, [0], keepdim)
        shifted = fd.ops.sub(flat, largest if keepdim else fd.ops.broadcast(largest, [True]))
        fd.add_output(fd.ops.log(fd.ops.sum(fd.ops.exp(shifted), [0])))
    given = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))
    (y,) = run(fd, [given])
    wanted = given.double().sub(given.max().double()).logsumexp((0, 1))
    assert abs(y.item() - wanted.item()) <= 2.0**-20 * (1 + abs(wanted.item()))
