"""References of ops, which validate kernels: where torch itself traps or has no answer, they have C's and weft's."""

from __future__ import annotations

import pytest
import torch

from weft import FusionDefinition
from weft.errors import WeftError
from weft.ops.functions import FUNCTIONS
from weft.ops.registry import OPS

LOWEST = -(2**31)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("div", [3, -3, -7, 7, 0, 0, LOWEST]),
        ("mod", [1, -1, 0, 0, 0, 0, 0]),
        ("remainder", [1, 1, 0, 0, 0, 0, 0]),
    ],
)
def test_integers_divided_by_nothing_are_nothing_and_by_minus_one_are_turned(op: str, expected: list[int]) -> None:
    a = torch.tensor([7, -7, 7, -7, 7, 0, LOWEST], dtype=torch.int32)
    b = torch.tensor([2, 2, -1, -1, 0, 0, -1], dtype=torch.int32)
    assert OPS[op].ref(a, b).tolist() == expected


def test_complex_says_which_argument_is_wrong() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True)
        for values, words in ((("a", x), "argument 1"), ((x, "a"), "argument 2")):
            with pytest.raises((WeftError, TypeError), match=words):
                FUNCTIONS["complex"](fd.fusion, *values)
        fd.add_output(x)
