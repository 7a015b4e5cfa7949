"""Conditions on positions, read as bounds: where a condition holds all its bounds do, and where it is a plain one the bounds say just that."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from weft import DataType, FusionDefinition
from weft.analysis.masks import EVERYWHERE, Needed, mask_bounds
from weft.expr import evaluate

ROWS, COLUMNS = 5, 7
Condition = Callable[[Any, Any, Any], Any]

EXACT: dict[str, tuple[Condition, Callable[[int, int], bool]]] = {
    "i >= j": (lambda o, i, j: o.ge(i, j), lambda i, j: i >= j),
    "i > j": (lambda o, i, j: o.gt(i, j), lambda i, j: i > j),
    "i <= j": (lambda o, i, j: o.le(i, j), lambda i, j: i <= j),
    "i < j": (lambda o, i, j: o.lt(i, j), lambda i, j: i < j),
    "i == j": (lambda o, i, j: o.eq(i, j), lambda i, j: i == j),
    "not i < j": (lambda o, i, j: o.logical_not(o.lt(i, j)), lambda i, j: not i < j),
    "~(i >= j)": (lambda o, i, j: o.bitwise_not(o.ge(i, j)), lambda i, j: not i >= j),
    "i + 2 >= j": (lambda o, i, j: o.ge(o.add(i, 2), j), lambda i, j: i + 2 >= j),
    "i - j >= 1": (lambda o, i, j: o.ge(o.sub(i, j), 1), lambda i, j: i - j >= 1),
    "-j >= -i": (lambda o, i, j: o.ge(o.neg(j), o.neg(i)), lambda i, j: -j >= -i),
    "2 i >= j": (lambda o, i, j: o.ge(o.mul(i, 2), j), lambda i, j: 2 * i >= j),
    "3 j < 2 i": (lambda o, i, j: o.lt(o.mul(3, j), o.mul(2, i)), lambda i, j: 3 * j < 2 * i),
    "i >= 2": (lambda o, i, j: o.ge(o.add(i, o.mul(j, 0)), 2), lambda i, j: i >= 2),
    "i >= j and j > 0": (lambda o, i, j: o.logical_and(o.ge(i, j), o.gt(j, 0)), lambda i, j: i >= j and j > 0),
    "not (i < j or j < 1)": (lambda o, i, j: o.logical_not(o.logical_or(o.lt(i, j), o.lt(j, 1))), lambda i, j: not (i < j or j < 1)),
    "(i >= j) as an integer": (lambda o, i, j: o.cast(o.cast(o.ge(i, j), DataType.Int), DataType.Bool), lambda i, j: i >= j),
}  # fmt: skip
SOUND: dict[str, tuple[Condition, Callable[[int, int], bool]]] = {
    "i >= j or j > 3": (lambda o, i, j: o.logical_or(o.ge(i, j), o.gt(j, 3)), lambda i, j: i >= j or j > 3),
    "i != j": (lambda o, i, j: o.ne(i, j), lambda i, j: i != j),
    "not i == j": (lambda o, i, j: o.logical_not(o.eq(i, j)), lambda i, j: i != j),
    "i j >= 3": (lambda o, i, j: o.ge(o.mul(i, j), 3), lambda i, j: i * j >= 3),
    "i % 2 >= 1": (lambda o, i, j: o.ge(o.add(o.remainder(i, 2), o.mul(j, 0)), 1), lambda i, j: i % 2 >= 1),
}  # fmt: skip


def bounds(condition: Condition, positions: Callable[[FusionDefinition], tuple[Any, Any]]) -> Needed:
    with FusionDefinition() as fd:
        x = fd.define_tensor([ROWS, COLUMNS], contiguity=True)
        out = fd.ops.where(condition(fd.ops, *positions(fd)), x, 0.0)
        fd.add_output(out)
    return mask_bounds(out.definition())


def plain(fd: FusionDefinition) -> tuple[Any, Any]:
    i, j = (fd.ops.iota(n, 0, 1, DataType.Int) for n in (ROWS, COLUMNS))
    return fd.ops.broadcast(i, [False, True]), fd.ops.broadcast(j, [True, False])


def moved(fd: FusionDefinition) -> tuple[Any, Any]:
    """The same, by way of what moves axes: expanded, and with an axis that comes and goes."""
    i, j = (fd.ops.iota(n, 0, 1, DataType.Int) for n in (ROWS, COLUMNS))
    i = fd.ops.expand(fd.ops.broadcast(i, [False, True]), [ROWS, COLUMNS])
    j = fd.ops.squeeze(fd.ops.broadcast(fd.ops.broadcast(j, [True, False]), [True, False, False]), [0])
    return i, j


def hold(found: Needed, i: int, j: int) -> bool:
    return all(sum(step * (i, j)[place] for place, step in bound.steps) + evaluate(bound.offset, {}) <= 0 for bound in found)  # type: ignore[operator]


@pytest.mark.parametrize("positions", [plain, moved])
@pytest.mark.parametrize("name", EXACT)
def test_a_plain_condition_is_its_bounds(name: str, positions: Callable[[FusionDefinition], tuple[Any, Any]]) -> None:
    build, expected = EXACT[name]
    found = bounds(build, positions)
    for i, j in itertools.product(range(ROWS), range(COLUMNS)):
        assert hold(found, i, j) == expected(i, j), (i, j, found)


@pytest.mark.parametrize("name", SOUND)
def test_a_bound_never_leaves_out_what_is_needed(name: str) -> None:
    build, expected = SOUND[name]
    found = bounds(build, plain)
    assert all(hold(found, i, j) for i, j in itertools.product(range(ROWS), range(COLUMNS)) if expected(i, j))


def test_steps_and_starts_of_an_iota_count() -> None:
    def positions(fd: FusionDefinition) -> tuple[Any, Any]:
        i, j = fd.ops.iota(ROWS, 3, 2, DataType.Int), fd.ops.iota(COLUMNS, 10, -1, DataType.Int)
        return fd.ops.broadcast(i, [False, True]), fd.ops.broadcast(j, [True, False])

    found = bounds(EXACT["i >= j"][0], positions)
    for i, j in itertools.product(range(ROWS), range(COLUMNS)):
        assert hold(found, i, j) == (3 + 2 * i >= 10 - j)


def test_what_is_no_linear_function_of_positions_says_nothing() -> None:
    def positions(fd: FusionDefinition) -> tuple[Any, Any]:
        return fd.define_tensor([ROWS, COLUMNS], contiguity=True, dtype=DataType.Int), plain(fd)[1]

    assert bounds(EXACT["i >= j"][0], positions) == EVERYWHERE
