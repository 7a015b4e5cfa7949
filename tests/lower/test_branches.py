"""Selections by position: each vector computes its own part of a cat only, and the values are torch's, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs
from lookup_cases import TYPES, places

from weft import DataType, FusionDefinition
from weft.lower import branches as branches_of_weft
from weft.options import options

F32 = DataType.Float
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture(autouse=True)
def on_an_h200() -> Iterator[None]:
    """At these sizes an H200's kernels have vectors; an H100's, whose launches are shorter, have single elements, which need no branches."""
    with options(chip="H200"):
        yield


def run(define: Callable[..., Any], inputs: list[torch.Tensor], wanted: torch.Tensor, has_branches: bool | None = True) -> FusionDefinition:
    """Execute a definition over inputs of fixed sizes, with all checks. has_branches: whether its kernels are to have some; None where either will do."""
    with FusionDefinition() as fd:
        out = define(fd, *(fd.define_tensor(list(x.shape), contiguity=True, dtype=TYPES[x.dtype]) for x in inputs))
        fd.add_output(fd.ops.cast(out, dtype=TYPES[inputs[0].dtype]))
    with poisoned_outputs():
        (found,) = fd.execute(inputs, check="races")
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)
    if has_branches is not None:
        assert (branches(fd) > 0) is has_branches, branches(fd)
    return fd


def branches(fd: FusionDefinition) -> int:
    return sum(r.program.text.count("  else {") for r in fd.fec.kernel_runtimes)  # type: ignore[attr-defined]


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def wide(fd: FusionDefinition, x: Any) -> Any:
    return fd.ops.cast(x, dtype=F32)


def some(fd: FusionDefinition, x: Any, number: int) -> Any:
    """A function of x, another one for each number."""
    x = wide(fd, x)
    return (fd.ops.neg(x), fd.ops.sin(x) * 2.0, x * x + 1.0, fd.ops.abs(x) * fd.ops.cos(x))[number % 4]


def some_of(x: torch.Tensor, number: int) -> torch.Tensor:
    x = x.double()
    return (-x, x.sin() * 2, x * x + 1, x.abs() * x.cos())[number % 4]


CATS = [
    (4, (256, 256), torch.bfloat16, True), (4, (512, 256, 256), torch.float16, True), (2, (256,) * 8, torch.bfloat16, None), (1, (512, 512), torch.float32, True),
    (5, (260, 252), torch.bfloat16, None), (3, (257, 255), torch.float32, None), (7, (131, 250), torch.float16, None), (3, (256, 0, 256), torch.float32, True),
    (3, (5, 3), torch.bfloat16, False), (1, (1, 1023), torch.float32, None), (6, (3, 5, 1019, 5), torch.bfloat16, None),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "widths", "dtype", "has_branches"), CATS)
def test_parts_of_a_row(rows: int, widths: tuple[int, ...], dtype: torch.dtype, has_branches: bool | None) -> None:
    parts = [drawn(rows, n, dtype=dtype, seed=k) for k, n in enumerate(widths)]
    wanted = torch.cat([some_of(x, k) for k, x in enumerate(parts)], 1)
    run(lambda fd, *parts: fd.ops.cat([some(fd, x, k) for k, x in enumerate(parts)], dim=1), parts, wanted, has_branches)


@pytest.mark.parametrize("heights", [(4, 4), (1, 3, 5), (2, 7)])
def test_parts_along_an_outer_axis(heights: tuple[int, ...]) -> None:
    parts = [drawn(n, 3, 128, seed=k) for k, n in enumerate(heights)]
    run(lambda fd, *parts: fd.ops.cat([some(fd, x, k) for k, x in enumerate(parts)], dim=0), parts, torch.cat([some_of(x, k) for k, x in enumerate(parts)]), None)


@pytest.mark.parametrize("widths", [(128, 128, 256, 512), (64, 200, 120, 130), (3, 6, 2, 501)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cat_of_cats_and_of_functions_of_cats(widths: tuple[int, ...], dtype: torch.dtype) -> None:
    parts = [drawn(3, n, dtype=dtype, seed=k) for k, n in enumerate(widths)]

    def define(fd: FusionDefinition, a: Any, b: Any, c: Any, d: Any) -> Any:
        first = fd.ops.cat([some(fd, a, 0), some(fd, b, 1)], dim=1)
        return fd.ops.cat([fd.ops.sin(first), fd.ops.cat([some(fd, c, 2), some(fd, d, 3)], dim=1)], dim=1)

    a, b, c, d = (some_of(x, k) for k, x in enumerate(parts))
    run(define, parts, torch.cat([torch.cat([a, b], 1).sin(), c, d], 1), None)


def test_rows_that_only_one_part_looks_up() -> None:
    """A gather has an index per element of its own part: there are none behind it."""
    x, y, index, chosen = drawn(9, 256), drawn(4, 256, seed=1), places(256, 4, 256), places(9, 4)

    def define(fd: FusionDefinition, x: Any, y: Any, index: Any, chosen: Any) -> Any:
        rows = fd.ops.index_select(x, chosen, 0)
        return fd.ops.cat([fd.ops.sin(fd.ops.gather(rows, index, 1)), fd.ops.neg(y), rows * 2.0], dim=1)

    rows = x.double()[chosen]
    run(define, [x, y, index, chosen], torch.cat([rows.gather(1, index).sin(), -y.double(), rows * 2], 1), None)


def test_what_both_parts_read_is_computed_for_both() -> None:
    x, y, z = drawn(4, 512), drawn(4, 256, seed=1), drawn(4, 256, seed=2)

    def define(fd: FusionDefinition, x: Any, y: Any, z: Any) -> Any:
        factor = fd.ops.sin(x) + 2.0
        return fd.ops.cat([fd.ops.exp(y), fd.ops.neg(z)], dim=1) * factor + factor

    factor = x.double().sin() + 2
    run(define, [x, y, z], torch.cat([y.double().exp(), -z.double()], 1) * factor + factor, None)


def test_conditions_that_are_written_out() -> None:
    """Of the same position twice, one of which decides the other, and one of two axes."""
    x, y = (drawn(16, 512, dtype=torch.bfloat16, seed=n) for n in range(2))

    def define(fd: FusionDefinition, x: Any, y: Any) -> Any:
        column, row = (fd.ops.broadcast_in_dim(fd.ops.iota(x.size(d), dtype=DataType.Int), shape=x.shape(), broadcast_dims=[d]) for d in (1, 0))
        low = fd.ops.where(fd.ops.lt(column, 256), fd.ops.sin(x), fd.ops.cos(y))
        both = fd.ops.where(fd.ops.logical_and(fd.ops.ge(column, 128), fd.ops.lt(row, 8)), fd.ops.exp(x), low)
        return fd.ops.where(fd.ops.logical_not(fd.ops.lt(column, 258)), fd.ops.neg(y), both)

    a, b, column, row = x.double(), y.double(), torch.arange(512), torch.arange(16)[:, None]
    wanted = torch.where((column >= 128) & (row < 8), a.exp(), torch.where(column < 256, a.sin(), b.cos()))
    run(define, [x, y], torch.where(column >= 258, -b, wanted), None)


def test_a_position_that_all_elements_share() -> None:
    """An iota of one element, expanded: its axis is no position."""
    x, y = drawn(4, 256), drawn(4, 256, seed=1)

    def define(fd: FusionDefinition, x: Any, y: Any) -> Any:
        one, zero = (fd.define_scalar(n, dtype=DataType.Int) for n in (1, 0))
        shared = fd.ops.expand(fd.ops.broadcast(fd.ops.iota(one, zero, one, DataType.Int), [True, False]), [4, 256])
        return fd.ops.where(fd.ops.lt(shared, 1), fd.ops.sin(x), fd.ops.exp(y))

    run(define, [x, y], x.double().sin(), False)


def test_positions_that_wrap_around() -> None:
    x, y = drawn(4, 512), drawn(4, 512, seed=1)

    def define(fd: FusionDefinition, x: Any, y: Any) -> Any:
        column = fd.ops.broadcast_in_dim(fd.ops.cast(fd.ops.iota(x.size(1), dtype=DataType.Int), dtype=DataType.Char), shape=x.shape(), broadcast_dims=[1])
        return fd.ops.where(fd.ops.lt(fd.ops.cast(column, dtype=DataType.Int), 100), fd.ops.sin(x), fd.ops.exp(y))

    run(define, [x, y], torch.where(torch.arange(512).to(torch.int8) < 100, x.double().sin(), y.double().exp()), False)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_cat_that_a_reduction_follows(dim: int) -> None:
    x, y = drawn(6, 256), drawn(6, 256, seed=1)

    def define(fd: FusionDefinition, x: Any, y: Any) -> Any:
        joined = fd.ops.cat([fd.ops.sin(x) * 2.0, fd.ops.neg(fd.ops.exp(y))], dim=1)
        return fd.ops.sum(joined, [dim])

    run(define, [x, y], torch.cat([x.double().sin() * 2, -y.double().exp()], 1).sum(dim), None)


@pytest.mark.parametrize("widths", [(256, 0), (0, 256), (3, 5), (-8, 264)])
def test_pads(widths: tuple[int, int]) -> None:
    x, y = drawn(3, 256), drawn(3, 256 + sum(widths), seed=1)
    define = lambda fd, x, y: fd.ops.pad(fd.ops.exp(fd.ops.sin(x)), list(widths), 1.5) * y  # noqa: E731
    run(define, [x, y], torch.nn.functional.pad(x.double().sin().exp(), widths, value=1.5) * y.double(), None)


def test_random_numbers_are_of_the_element_in_every_branch() -> None:
    x, y = drawn(4, 256), drawn(4, 256, seed=1)
    with FusionDefinition() as fd:
        parts = [fd.define_tensor([4, 256], contiguity=True) for _ in range(2)]
        noise = fd.ops.rand_like(fd.ops.cat(parts, dim=1))
        fd.add_output(fd.ops.cat([fd.ops.exp(fd.ops.sin(parts[0])), fd.ops.neg(parts[1])], dim=1) * noise)
        fd.add_output(noise)
    found, noise = fd.execute([x, y], check="races")
    torch.testing.assert_close(found.double(), torch.cat([x.double().sin().exp(), -y.double()], 1) * noise.double(), rtol=1e-5, atol=1e-6)
    assert branches(fd) and len(noise.unique()) > noise.numel() // 2


def rotary_backward(batch: int, heads: int, rows: int, width: int, has_branches: bool | None) -> None:
    """Gradients of queries, keys and values, which are joined for the gradient of their common product."""
    half, joined = width // 2, [batch, rows, heads * width]
    q, k, v = (drawn(batch, rows, heads, width, dtype=torch.bfloat16, seed=n).transpose(1, 2) for n in range(3))
    sin, cos = drawn(rows, width, dtype=torch.bfloat16, seed=3), drawn(rows, width, dtype=torch.bfloat16, seed=4)
    with FusionDefinition() as fd:
        big = [fd.define_tensor(shape=list(q.shape), contiguity=True, dtype=DataType.BFloat16, stride_order=[3, 1, 2, 0]) for _ in range(3)]
        small = [fd.define_tensor(shape=[rows, width], contiguity=True, dtype=DataType.BFloat16) for _ in range(2)]
        s, c = (fd.ops.broadcast(wide(fd, t), [True, True, False, False]) for t in small)

        def flat(x: Any) -> Any:
            return fd.ops.reshape(fd.ops.permute(x, dims=[0, 2, 1, 3]), new_shape=joined)

        def turned(x: Any) -> Any:
            m = wide(fd, x) * s
            high = fd.ops.slice(m, start_indices=[0, 0, 0, half], end_indices=[batch, heads, rows, width])
            low = fd.ops.slice(m, start_indices=[0, 0, 0, 0], end_indices=[batch, heads, rows, half])
            return flat(fd.ops.cast(fd.ops.cat([high, fd.ops.neg(low)], dim=3) + wide(fd, x) * c, dtype=DataType.BFloat16))

        fd.add_output(fd.ops.cat([turned(big[0]), turned(big[1]), flat(big[2])], dim=2))
    with poisoned_outputs():
        (found,) = fd.execute([q, k, v, sin, cos], check="races")

    def wanted(x: torch.Tensor) -> torch.Tensor:
        m = x.double() * sin.double()
        return (torch.cat([m[..., half:], -m[..., :half]], -1) + x.double() * cos.double()).permute(0, 2, 1, 3).flatten(2)

    torch.testing.assert_close(found.double(), torch.cat([wanted(q), wanted(k), v.double().permute(0, 2, 1, 3).flatten(2)], 2), rtol=1.6e-2, atol=1.6e-2)
    if has_branches is not None:
        assert (branches(fd) > 0) is has_branches


@pytest.mark.parametrize(("shape", "has_branches"), [((1, 4, 6, 64), True), ((2, 4, 3, 128), True), ((1, 3, 5, 24), None), ((1, 1, 1, 10), None)])
def test_rotary_backward(shape: tuple[int, int, int, int], has_branches: bool | None) -> None:
    rotary_backward(*shape, has_branches)


def test_a_cat_that_gains_nothing_has_no_branches() -> None:
    """Threads of a warp lie in different parts: both ways one after the other would cost more."""
    parts = [drawn(64, 8, dtype=torch.bfloat16, seed=n) for n in range(2)]
    run(lambda fd, x, y: fd.ops.cat([fd.ops.sin(wide(fd, x)), fd.ops.exp(wide(fd, y))], dim=1), parts, torch.cat([parts[0].double().sin(), parts[1].double().exp()], 1), False)


def test_a_warp_is_asked_once_about_each_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter with two poles, written out in Python: each value that it had is a part of one element, and no vector has only such elements."""
    asked: list[Any] = []
    answer = branches_of_weft.divided_warps
    monkeypatch.setattr(branches_of_weft, "divided_warps", lambda test, block: asked.append(test) or answer(test, block))
    x = drawn(3, 16)
    wanted, last, before = [], torch.zeros(3, 1, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64)
    for n in range(16):
        last, before = x.double()[:, n : n + 1] + last * 0.5 - before * 0.25, last
        wanted.append(last)

    def define(fd: FusionDefinition, x: Any) -> Any:
        values: list[Any] = []
        for n in range(16):
            value = fd.ops.slice(x, [0, n], [3, n + 1])
            for back, factor in ((1, 0.5), (2, -0.25)):
                value = value + values[-back] * factor if len(values) >= back else value
            values.append(value)
        return fd.ops.cat(values, dim=1)

    fd = run(define, [x], torch.cat(wanted, 1), None)
    assert not any("if (false)" in r.program.text for r in fd.fec.kernel_runtimes)  # type: ignore[attr-defined]
    assert len(asked) == len(set(asked))
