"""How many warps are divided about a condition: threads of a warp are neighbours along x first."""

from __future__ import annotations

import pytest

from weft.expr import const, less, mul, var
from weft.lower.warps import divided_warps

X, Y, BLOCK = var("threadIdx.x", extent=32), var("threadIdx.y", extent=4), var("blockIdx.x", extent=1000)
WIDE = var("threadIdx.x", extent=128)


@pytest.mark.parametrize("test, block, wanted", [
    (less(X, const(2)), (32, 4), (1.0, 1.0)),
    (less(X, const(16)), (16, 8), (0.0, 0.0)),
    (less(Y, const(2)), (32, 4), (0.0, 0.0)),
    (less(Y, const(1)), (8, 4), (1.0, 1.0)),
    (less(WIDE, const(2)), (128, 1), (0.1, 0.4)),
    (less(mul(BLOCK, 32) + X, const(16_000 + 5)), (32, 1), (0.0, 0.1)),
], ids=str)  # fmt: skip
def test_fraction_of_divided_warps(test, block, wanted) -> None:
    found = divided_warps(test, [const(n) for n in (*block, 1)])
    assert found is not None and wanted[0] <= found <= wanted[1]


def test_sizes_that_are_not_known() -> None:
    assert divided_warps(less(X, const(2)), [var("n"), const(1), const(1)]) is None
    assert divided_warps(less(mul(var("i", extent=var("n")), 4) + X, const(2)), [const(32), const(1), const(1)]) is None
