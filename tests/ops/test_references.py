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


@pytest.mark.parametrize("op", ["div", "mod", "remainder"])
def test_integers_without_a_sign_are_divided_by_255_too(op: str) -> None:
    """torch finds 255 equal to -1 there, and -1 is the divisor that is apart."""
    a, b = (t.flatten() for t in torch.meshgrid(torch.arange(256), torch.arange(256), indexing="ij"))
    found = OPS[op].ref(a.to(torch.uint8), b.to(torch.uint8)).long()
    whole = a // b.clamp(min=1)
    assert torch.equal(found, torch.where(b == 0, 0, whole if op == "div" else a - whole * b))


def test_complex_says_which_argument_is_wrong() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True)
        for values, words in ((("a", x), "argument 1"), ((x, "a"), "argument 2")):
            with pytest.raises((WeftError, TypeError), match=words):
                FUNCTIONS["complex"](fd.fusion, *values)
        fd.add_output(x)
