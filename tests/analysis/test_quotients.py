"""Quotients of indices: elements of a vector that stays within a multiple of the divisor do not count."""

from __future__ import annotations

import itertools
import random

import pytest

from weft.expr import add, const, evaluate_int, floordiv, mod, mul, var, variables


def test_elements_of_a_vector_have_the_row_of_the_vector() -> None:
    """So that a value per row is loaded, and what is computed from it is computed, once for a vector."""
    thread, element = var("threadIdx.x"), var("i", extent=4)
    place = add(mul(thread, 4), element)
    assert floordiv(place, 128) is floordiv(thread, 32)
    assert floordiv(place, 4) is thread
    assert element not in variables(floordiv(add(place, mul(var("j", extent=3), 8)), 12))


@pytest.mark.parametrize("extent, stride, divisor", [(4, 4, 6), (5, 4, 8), (4, 2, 8), (3, 3, 7)])
def test_others_keep_them(extent: int, stride: int, divisor: int) -> None:
    element = var("i", extent=extent)
    assert element in variables(floordiv(add(mul(var("n"), stride), element), divisor))


@pytest.mark.parametrize("seed", range(40))
def test_values(seed: int) -> None:
    made = random.Random(seed)
    symbols = [var(name, extent=made.choice([1, 2, 3, 4, 5, 8])) for name in "abc"]
    strides = [made.choice([1, 2, 3, 4, 6, 8, 12, 16]) for _ in symbols]
    total = const(made.choice([0, 0, 1, 4, 8]))
    for symbol, stride in zip(symbols, strides):
        total = add(total, mul(symbol, stride))
    divisor = made.choice([2, 3, 4, 6, 8, 12, 16, 24, 64])
    quotient, rest = floordiv(total, divisor), mod(total, divisor)
    for values in itertools.product(*(range(int(s.extent.value)) for s in symbols)):
        env = dict(zip(symbols, values))
        assert divmod(evaluate_int(total, env), divisor) == (evaluate_int(quotient, env), evaluate_int(rest, env))


def test_a_quotient_by_nothing_is_left_to_its_reader() -> None:
    assert floordiv(add(mul(var("n"), 4), var("i", extent=4)), 0).op == "floordiv"
