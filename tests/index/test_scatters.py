"""Scatters in kernels: additions at positions that repeat, writes at positions that do not, beside torch in float64; and those that torch runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition, options


def defined(define: Callable[[Any, Any], None]) -> FusionDefinition:
    with FusionDefinition() as fd:
        define(fd, fd.ops)
    return fd


def scattering(op: str, *tensors: torch.Tensor, dim: int, number: float | None = None) -> FusionDefinition:
    """A definition of one scatter of tensors like these, and its negation."""

    def define(fd: Any, o: Any) -> None:
        base, index, *source = [fd.from_pytorch(t) for t in tensors]
        result = getattr(o, op)(base, index, source[0] if source else number, dim)
        fd.add_output(result)
        fd.add_output(o.neg(result))

    return defined(define)


def steps(fd: FusionDefinition) -> str:
    return str(fd.fec._caller.last).splitlines()[0]


SHAPES = [((10, 7), (33, 7), (33, 7), 0), ((10, 7), (10, 5), (12, 9), 1), ((3, 40, 5), (3, 129, 5), (3, 129, 5), 1), ((50,), (1000,), (1000,), 0), ((1, 9), (1, 70), (1, 70), -1)]


@pytest.mark.parametrize(("base", "index", "source", "dim"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64], ids=str)
def test_sums_at_positions_that_repeat(base: Any, index: Any, source: Any, dim: int, dtype: torch.dtype) -> None:
    x, s = torch.randn(base).mul(9).to(dtype), torch.randn(source).mul(9).to(dtype)
    i = torch.randint(0, base[dim], index)
    kept = x.clone()
    fd = scattering("scatter_add", x, i, s, dim=dim)
    out, negated = fd.execute([x, i, s])
    wanted = x.double().scatter_add(dim, i, s.double())
    size = x.double().abs().scatter_add(dim, i, s.double().abs())  # what roundings are relative to
    count = torch.ones_like(wanted).scatter_add(dim, i, torch.ones(index).double())
    unit = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-24, torch.int64: 0.0}[dtype]
    rounding = 2.0**-8 * wanted.abs() if dtype is torch.bfloat16 else 0.0  # of the result to its type
    assert out.dtype is dtype and ((out.double() - wanted).abs() <= count * unit * size + rounding).all()
    assert torch.equal(negated, -out) and torch.equal(x, kept)
    assert "torch" not in steps(fd)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.bool], ids=str)
@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32], ids=str)
def test_writes_at_positions_of_their_own(dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    x, s = torch.randn(9, 17).mul(9).to(dtype), torch.randn(9, 11).mul(9).to(dtype)
    i = torch.stack([torch.randperm(17)[:11] for _ in range(9)]).to(index_dtype)

    def define(fd: Any, o: Any) -> None:
        fd.add_output(o.scatter(*(fd.from_pytorch(t) for t in (x, i, s)), 1))

    fd = defined(define)
    (out,) = fd.execute([x, i, s])
    assert torch.equal(out, x.scatter(1, i.long(), s)) and "torch" not in steps(fd)


def test_one_number_is_written() -> None:
    x, i = torch.randn(6, 8), torch.tensor([[1, 5], [0, 7], [3, 2], [4, 4], [6, 1], [2, 2]])
    out, _ = scattering("scatter", x, i, dim=1, number=2.5).execute([x, i])
    assert torch.equal(out, x.scatter(1, i, 2.5))


def test_what_is_computed_around_is_in_the_kernels() -> None:
    """The base is written once, where it is scattered into; sources are computed where they are added."""

    def define(fd: Any, o: Any) -> None:
        base, index, source = fd.from_pytorch(x), fd.from_pytorch(i), fd.from_pytorch(s)
        fd.add_output(o.scatter_add(o.exp(base), index, o.mul(source, 3.0), 0))

    x, i, s = torch.randn(20, 6), torch.randint(0, 20, (50, 6)), torch.randn(50, 6)
    fd = defined(define)
    torch.testing.assert_close(fd.execute([x, i, s])[0], x.exp().scatter_add(0, i, 3 * s))
    assert steps(fd).startswith("2 kernels;")


def test_scatters_behind_each_other_and_a_reduction() -> None:
    def define(fd: Any, o: Any) -> None:
        base, index, source = fd.from_pytorch(x), fd.from_pytorch(i), fd.from_pytorch(s)
        first = o.scatter_add(base, index, source, 0)
        second = o.scatter_add(first, index, o.neg(source), 0)
        for out in (first, second, o.sum(second, [0]), o.scatter_add(o.reshape(base, [10, 12]), index, source, 0)):
            fd.add_output(out)

    x, i, s = torch.randn(20, 6), torch.randint(0, 10, (30, 6)), torch.randn(30, 6)
    first, second, sums, reshaped = defined(define).execute([x, i, s])
    torch.testing.assert_close(first, x.scatter_add(0, i, s))
    torch.testing.assert_close(second, x, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sums, x.sum(0), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(reshaped, x.reshape(10, 12).scatter_add(0, i, s))


def test_the_base_is_written_in_place_where_that_is_asked_for() -> None:
    def define(fd: Any, o: Any) -> None:
        base, index, source = fd.from_pytorch(x), fd.from_pytorch(i), fd.from_pytorch(s)
        fd.add_output(o.scatter_add(base, index, source, 0), base)
        fd.add_output(o.mul(base, 2.0))

    x, i, s = torch.randn(20, 6), torch.randint(0, 20, (50, 6)), torch.randn(50, 6)
    old = x.clone()
    (doubled,) = defined(define).execute([x, i, s])
    torch.testing.assert_close(x, old.scatter_add(0, i, s))
    assert torch.equal(doubled, 2 * old)


@pytest.mark.parametrize("sizes", [(5, 8), (300, 40), (1, 1), (1, 7), (3, 1), (0, 4)], ids=str)
def test_a_base_that_is_also_what_is_written_is_not_written_in_place(sizes: tuple[int, ...]) -> None:
    """A thread would read what another one has written over."""
    with FusionDefinition() as fd:
        x, order = (fd.define_tensor([-1, -1], contiguity=True, dtype=dtype) for dtype in (DataType.Float, DataType.Int))
        fd.add_output(fd.ops.scatter(x, order, x, 1), alias_input=x)
    given, index = torch.randn(sizes), torch.rand(sizes).argsort(1)
    want = given.clone().scatter(1, index, given.clone())
    with poisoned_outputs():
        fd.execute([given, index])
    assert torch.equal(given, want)


def test_strided_tensors_and_channels_last() -> None:
    x = torch.randn(2, 5, 3, 4).to(memory_format=torch.channels_last)
    i, s = torch.randint(0, 5, (2, 9, 3, 8))[..., ::2], torch.randn(4, 3, 9, 2).permute(3, 2, 1, 0)
    out, negated = scattering("scatter_add", x, i, s, dim=1).execute([x, i, s])
    torch.testing.assert_close(out, x.scatter_add(1, i, s))
    assert torch.equal(negated, -out)


def test_one_definition_at_many_sizes() -> None:
    fd = scattering("scatter_add", torch.ones(3, 4), torch.ones(3, 4, dtype=torch.int64), torch.ones(3, 4), dim=0)
    for rows, columns, count in ((3, 4, 9), (1, 1, 5), (70, 3, 2), (4, 0, 3), (5, 6, 0), (8, 65, 33)):
        x, i, s = torch.randn(rows, columns), torch.randint(0, rows, (count, columns)), torch.randn(count, columns)
        torch.testing.assert_close(fd.execute([x, i, s])[0], x.scatter_add(0, i, s))


@pytest.mark.parametrize("op", ["scatter", "scatter_add"])
@pytest.mark.parametrize("wrong", [10, -1, 1 << 40])
def test_a_position_out_of_range_is_an_error_of_the_emulator(op: str, wrong: int) -> None:
    x, i, s = torch.zeros(10, 3), torch.zeros(4, 3, dtype=torch.int64), torch.ones(4, 3)
    i[2, 1] = wrong
    with pytest.raises(RuntimeError, match="position|out of range"):
        scattering(op, x, i, s, dim=0).execute([x, i, s])


def test_the_same_bits_are_asked_for_between_calls() -> None:
    """By the setting, and by torch's own: torch sorts the positions then."""
    x, i, s = torch.randn(10), torch.randint(0, 10, (300,)), torch.randn(300)
    fd = scattering("scatter_add", x, i, s, dim=0)
    found = []
    for setting, torchs in ((False, False), (True, False), (False, True), (False, False)):
        torch.use_deterministic_algorithms(torchs)
        try:
            with options(deterministic=setting):
                torch.testing.assert_close(fd.execute([x, i, s])[0], x.scatter_add(0, i, s), atol=1e-5, rtol=1e-5)
        finally:
            torch.use_deterministic_algorithms(False)
        found.append("torch" in steps(fd))
    assert found == [False, True, True, True]  # of the last call that was prepared; the fourth was prepared by the first
