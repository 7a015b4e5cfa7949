"""Ranges of integers: every value that a tensor of counted positions has is inside its range, and ends that are reached are told where no operand repeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.analysis.ranges import is_inside, range_of
from weft.ir.values import Scalar

EXTENT = 7
Made = Callable[[Any, Any], Any]

REACHED: dict[str, tuple[Made, Callable[[torch.Tensor], torch.Tensor]]] = {
    "i": (lambda o, i: i, lambda i: i),
    "3 i - 5": (lambda o, i: o.sub(o.mul(i, 3), 5), lambda i: 3 * i - 5),
    "-2 (i + 1)": (lambda o, i: o.mul(o.add(i, 1), -2), lambda i: -2 * (i + 1)),
    "|i - 2|": (lambda o, i: o.abs(o.sub(i, 2)), lambda i: (i - 2).abs()),
    "4 - |i - 2|": (lambda o, i: o.sub(4, o.abs(o.sub(i, 2))), lambda i: 4 - (i - 2).abs()),
    "|i + 2|": (lambda o, i: o.abs(o.add(i, 2)), lambda i: (i + 2).abs()),
    "between 2 and 5": (lambda o, i: o.clamp(i, 2, 5), lambda i: i.clamp(2, 5)),
    "at least 3": (lambda o, i: o.maximum(i, 3), lambda i: i.clamp_min(3)),
    "at most 3": (lambda o, i: o.minimum(i, 3), lambda i: i.clamp_max(3)),
    "(i - 3) / 2": (lambda o, i: o.div(o.sub(i, 3), 2), lambda i: torch.div(i - 3, 2, rounding_mode="trunc")),
    "-i": (lambda o, i: o.neg(i), lambda i: -i),
    "of 32 bits": (lambda o, i: o.cast(i, DataType.Int32), lambda i: i),
    "with another axis": (lambda o, i: o.broadcast(i, is_broadcast_dim=[False, True]), lambda i: i),
    "a truth value": (lambda o, i: o.cast(o.lt(i, 3), DataType.Int), lambda i: (i < 3).long()),
}  # fmt: skip
SOUND: dict[str, tuple[Made, Callable[[torch.Tensor], torch.Tensor]]] = {
    "i - i": (lambda o, i: o.sub(i, i), lambda i: i - i),
    "i < 3 ? i + 4 : i - 3": (lambda o, i: o.where(o.lt(i, 3), o.add(i, 4), o.sub(i, 3)), lambda i: torch.where(i < 3, i + 4, i - 3)),
}


def made(build: Made, start: int = 0) -> tuple[int, int] | None:
    with FusionDefinition() as fd:
        value = build(fd.ops, fd.ops.iota(EXTENT, start, dtype=DataType.Int))
        fd.add_output(fd.ops.cast(value, DataType.Float))
    return range_of(value)


@pytest.mark.parametrize("name", [*REACHED, *SOUND])
def test_values_are_inside(name: str) -> None:
    build, theirs = {**REACHED, **SOUND}[name]
    values = theirs(torch.arange(EXTENT))
    low, high = int(values.min()), int(values.max())
    found = made(build)
    assert found is not None and found[0] <= low and found[1] >= high
    assert found == (low, high) or name in SOUND


def test_what_is_not_known_or_may_overflow_has_no_range() -> None:
    assert made(lambda o, i: o.cast(o.mul(i, 1 << 30), DataType.Int32)) is None
    assert made(lambda o, i: o.mul(o.mul(i, 1 << 40), 1 << 40)) is None
    assert made(lambda o, i: o.div(i, i)) is None
    assert made(lambda o, i: o.cast(o.cast(i, DataType.Float), DataType.Int)) is None
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1], dtype=DataType.Float)
        counted = fd.ops.iota(x.size(0), dtype=DataType.Int)
        fd.add_output(fd.ops.add(x, counted))
    assert range_of(counted) is None and not is_inside(counted, 1 << 40)


def test_scalars_are_their_value() -> None:
    with FusionDefinition() as fd:
        value = fd.define_scalar(3, dtype=DataType.Int)
        fd.add_output(fd.ops.full([2], value, dtype=DataType.Int))
    assert isinstance(value, Scalar) and range_of(value) == (3, 3) and is_inside(value, 4) and not is_inside(value, 3)


JOINED: dict[str, tuple[Callable[[Any, Any], Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "a number's bits beside 1": (lambda o, i: o.bitwise_or(o.sub(i, 300), 1), lambda i: (i - 300) | 1),
    "bits of two positions": (lambda o, i: o.bitwise_and(i, o.add(i, 301)), lambda i: i & (i + 301)),
    "both are not 0": (lambda o, i: o.cast(o.logical_and(o.sub(i, 5), 1), DataType.Int), lambda i: (i != 5).long()),
    "one is not 0": (lambda o, i: o.cast(o.logical_or(o.sub(i, 5), 0), DataType.Int), lambda i: (i != 5).long()),
    "both are never 0": (lambda o, i: o.cast(o.logical_and(o.add(i, 3), -2), DataType.Int), lambda i: (i >= 0).long()),
}


@pytest.mark.parametrize("name", JOINED)
def test_and_and_or_of_numbers_are_not_one_of_them(name: str) -> None:
    """In a kernel that looks up, where ranges decide which operand of an op its result is."""
    build, theirs = JOINED[name]
    x, places = torch.randn(301, dtype=torch.float64), torch.randint(0, 301, (301,))
    with FusionDefinition() as fd:
        found = fd.ops.index_select(fd.from_pytorch(x), fd.from_pytorch(places), 0)
        fd.add_output(fd.ops.mul(found, build(fd.ops, fd.ops.iota(301))))
    torch.testing.assert_close(fd.execute([x, places])[0], x[places] * theirs(torch.arange(301)))
