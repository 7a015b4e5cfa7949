"""Complex functions of infinities, NaNs and zeros of both signs: what C's Annex G says, as the C library computes it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from weft import DataType, FusionDefinition

FUNCTIONS = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan, "atanh": np.arctanh, "cos": np.cos,
    "cosh": np.cosh, "exp": np.exp, "log": np.log, "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh,
}  # fmt: skip
PARTS = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 0.3, -2.5, 300.0, -1e200]
VALUES = torch.tensor([complex(a, b) for a, b in itertools.product(PARTS, PARTS)], dtype=torch.complex128)
EITHER = {("tanh", 0.0), ("tan", 0.0), ("acosh", float(np.pi / 2))}
"""tanh of 0 + i inf, tan of inf + 0i, acosh of 0 + i NaN: one part is a number in newer libraries, and NaN in older ones and in torch on a GPU."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=DataType.ComplexDouble)
        fd.add_output(getattr(fd.ops, name)(x))
    got = torch.view_as_real(fd.execute([VALUES])[0]).tolist()
    with np.errstate(all="ignore"):
        wanted = torch.view_as_real(torch.from_numpy(FUNCTIONS[name](VALUES.numpy()))).tolist()
    wrong = []
    for z, mine, theirs in zip(VALUES.tolist(), got, wanted):
        for a, b in zip(mine, theirs):
            is_same = a == b or abs(a) == abs(b) == float("inf") or (a != a and b != b) or abs(a - b) <= 1e-12 * (1 + abs(b))
            if not is_same and not (a != a and (name, b) in EITHER):
                wrong.append((z, mine, theirs))
    assert not wrong
