"""Masks of positions: what they throw away is not loaded, and no value changes."""

from __future__ import annotations

import random

import pytest
import torch

from weft import DataType, FusionDefinition


def positions(fd: FusionDefinition, x, dim: int, dtype: DataType = DataType.Int):  # noqa: ANN001, ANN201
    """The index along axis `dim` of `x`, as a tensor that lies along it."""
    return fd.ops.broadcast_in_dim(fd.ops.iota(x.size(dim), dtype=dtype), shape=x.shape(), broadcast_dims=[dim])


def tensor(fd: FusionDefinition, x: torch.Tensor):  # noqa: ANN201
    dtypes = {torch.float32: DataType.Float, torch.bfloat16: DataType.BFloat16, torch.float64: DataType.Double, torch.int64: DataType.Int}
    return fd.define_tensor(shape=[-1] * x.dim(), contiguity=True, dtype=dtypes[x.dtype])


def text_of(fd: FusionDefinition) -> str:
    return "\n".join(runtime.program.text for runtime in fd.fec.kernel_runtimes)


@pytest.mark.parametrize(("dtype", "shape"), [(torch.bfloat16, (2, 3, 70, 70)), (torch.float32, (2, 1, 128, 128)), (torch.bfloat16, (1, 2, 33, 264)), (torch.float32, (1, 1, 5, 1))])
def test_causal_softmax_loads_half_of_its_scores(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    rows, columns = shape[-2:]
    is_masked = torch.ones(rows, columns, dtype=torch.bool).triu(1)
    x[..., is_masked] = float("nan")  # what is thrown away matters to nobody
    with FusionDefinition() as fd:
        scores = tensor(fd, x)
        wide = fd.ops.cast(scores, dtype=DataType.Float) * 0.125
        wide = fd.ops.where(fd.ops.ge(positions(fd, scores, 2), positions(fd, scores, 3)), wide, float("-inf"))
        shares = fd.ops.exp(wide - fd.ops.max(wide, [3], True))
        fd.add_output(fd.ops.cast(shares / fd.ops.sum(shares, [3], True), dtype={torch.bfloat16: DataType.BFloat16}.get(dtype, DataType.Float)))
    (y,) = fd.execute([x], check="races")
    wanted = torch.softmax((x.double() * 0.125).masked_fill(is_masked, float("-inf")), -1)
    torch.testing.assert_close(y.double(), wanted, rtol=2**-8 if dtype is torch.bfloat16 else 1e-6, atol=1e-7)
    if columns > 1:
        assert ".fill(" in text_of(fd) or " = 0.f;" in text_of(fd)
        assert "weft::select<float>(false, (-weft::infinity<float>()), (-weft::infinity<float>()))" in text_of(fd)


@pytest.mark.parametrize("diagonal", [0, 3, -2])
@pytest.mark.parametrize("shape", [(40, 48), (3, 17, 19), (1, 9)])
def test_triu_loads_what_it_keeps(shape: tuple[int, ...], diagonal: int) -> None:
    x = torch.randn(shape)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.triu(tensor(fd, x), diagonal))
    assert torch.equal(fd.execute([x], check="races")[0], torch.triu(x, diagonal))


def mask(fd: FusionDefinition, x, choose: random.Random, depth: int = 2):  # noqa: ANN001, ANN201
    """A random condition on positions, for a definition and for torch."""
    if depth and choose.random() < 0.5:
        (a, p), (b, q) = mask(fd, x, choose, depth - 1), mask(fd, x, choose, depth - 1)
        if choose.random() < 0.5:
            return fd.ops.logical_and(a, b), lambda *i: p(*i) & q(*i)
        return fd.ops.logical_or(a, b), lambda *i: p(*i) | q(*i)
    if choose.random() < 0.2:
        a, p = mask(fd, x, choose, 0)
        return fd.ops.logical_not(a), lambda *i: ~p(*i)
    first, second = choose.sample(range(x.ndim), 2)
    step, shift, name = choose.choice([1, 1, 2, -1, -3]), choose.randint(-9, 9), choose.choice(["ge", "gt", "le", "lt", "eq"])
    left = positions(fd, x, first) * step + shift
    right = positions(fd, x, second) if choose.random() < 0.8 else choose.randint(0, 20)
    right_of = (lambda i: i[second]) if not isinstance(right, int) else (lambda i, n=right: n)
    return getattr(fd.ops, name)(left, right), lambda *i: getattr(torch, name)(i[first] * step + shift, torch.as_tensor(right_of(i)))


@pytest.mark.parametrize("seed", range(14))
def test_random_masks_change_no_value(seed: int) -> None:
    """Pointwise results and row sums, with other values where the mask takes the constant, or a third tensor."""
    choose = random.Random(seed)
    shape = choose.choice([(17, 40), (9, 9), (3, 12, 64), (33, 8), (2, 5, 7)])
    x, z = torch.randn(shape), torch.randn(shape)
    with FusionDefinition() as fd:
        tx, tz = tensor(fd, x), tensor(fd, z)
        condition, reference = mask(fd, tx, choose)
        other = tz if choose.random() < 0.4 else 0.5
        chosen = fd.ops.where(condition, tx * 2.0, other)
        if choose.random() < 0.5:
            chosen = fd.ops.where(fd.ops.logical_not(condition), 3.0, chosen)
            is_third = True
        else:
            is_third = False
        fd.add_output(fd.ops.sum(chosen, [-1]) if choose.random() < 0.5 else chosen)
    axes = torch.meshgrid(*(torch.arange(n) for n in shape), indexing="ij")
    holds = reference(*axes)
    wanted = torch.where(holds, x * 2.0, z if not isinstance(other, float) else torch.tensor(other))
    wanted = torch.where(holds, wanted, torch.tensor(3.0)) if is_third else wanted
    (y,) = fd.execute([x, z], check="races")
    torch.testing.assert_close(y, wanted.sum(-1) if y.dim() < len(shape) else wanted)


def test_what_another_reader_needs_is_loaded() -> None:
    x = torch.randn(40, 48)
    with FusionDefinition() as fd:
        t = tensor(fd, x)
        kept = fd.ops.where(fd.ops.ge(positions(fd, t, 0), positions(fd, t, 1)), t, 0.0)
        fd.add_output(kept)
        fd.add_output(t * 2.0)
    a, b = fd.execute([x], check="races")
    assert torch.equal(a, torch.tril(x)) and torch.equal(b, x * 2.0)


def test_a_column_that_all_rows_read_is_loaded_where_any_needs_it() -> None:
    """An axis along which the operand has one element: some other element of the result may need it."""
    x = torch.randn(40, 1)
    with FusionDefinition() as fd:
        t = fd.define_tensor(shape=[-1, 1], contiguity=[True, None], dtype=DataType.Float)
        z = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.where(fd.ops.le(positions(fd, z, 0), positions(fd, z, 1)), t, z))
    z = torch.randn(40, 48)
    rows, columns = torch.arange(40)[:, None], torch.arange(48)
    assert torch.equal(fd.execute([x, z], check="races")[0], torch.where(rows <= columns, x, z))


def test_bits_of_numbers_are_no_conditions() -> None:
    """`~1` is not 0 where `not 1` is; of two numbers that are not 0, `1 & 2` is."""
    x, places = torch.randn(70), torch.arange(70)
    with FusionDefinition() as fd:
        t = tensor(fd, x)
        small = fd.ops.cast(fd.ops.lt(fd.ops.iota(70), 33), DataType.Int)
        fd.add_output(fd.ops.where(fd.ops.cast(fd.ops.bitwise_not(small), DataType.Bool), t, 0.0))
        fd.add_output(fd.ops.where(fd.ops.logical_not(fd.ops.bitwise_and(small, fd.ops.mul(small, 2))), t, 0.0))
        fd.add_output(fd.ops.where(fd.ops.bitwise_not(fd.ops.cast(small, DataType.Bool)), t, 0.0))
    a, b, c = fd.execute([x])
    assert torch.equal(a, x) and torch.equal(b, x) and torch.equal(c, torch.where(places < 33, 0.0, x))


@pytest.mark.parametrize("shape", [(2, 17), (70, 90), (150, 33)])
@pytest.mark.parametrize("dim", [0, 1])
def test_running_sums_of_what_a_mask_keeps(shape: tuple[int, int], dim: int) -> None:
    """Their loads are issued a piece ahead, where what is thrown away is not loaded either."""
    x = torch.randn(shape, dtype=torch.float64)
    wanted = torch.triu(x, 1).cumsum(dim)
    x[torch.ones(shape, dtype=torch.bool).tril(0)] = float("nan")
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.cumsum(fd.ops.triu(tensor(fd, x), 1), dim))
    torch.testing.assert_close(fd.execute([x])[0], wanted)
