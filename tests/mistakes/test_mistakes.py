"""Mistakes of users: each has a code, the user's line, and a remedy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from table import MISTAKES

import weft
import weft.nn
from weft import DataType, FusionDefinition, WeftError
from weft.nn import functional as F


@pytest.fixture(scope="session")
def names() -> dict[str, Any]:
    """What the texts name. fd has the inputs x, y [-1, -1], i of integers, b of bools, z of complex numbers, v, n [-1], w [3, 5], s a number; other belongs to
    another definition; done and recorded add two matrices, as the operator added does, scaled multiplies by a number, rows sums rows of four; t is a tensor of
    torch [3, 4]."""
    with FusionDefinition() as elsewhere:
        other = elsewhere.define_tensor([2])
        elsewhere.add_output(other)
    with FusionDefinition() as done:
        left, right = (done.define_tensor([-1, -1], contiguity=True) for _ in range(2))
        done.add_output(left + right)
    with FusionDefinition() as recorded:
        left, right = (recorded.define_tensor([-1, -1], contiguity=True) for _ in range(2))
        recorded.add_output(left + right)
    added = weft.op("mistakes::added", recorded)
    with FusionDefinition() as scaled:
        row, factor = scaled.define_tensor([-1], contiguity=True), scaled.define_scalar(DataType.Double)
        scaled.add_output(row * factor)
    with FusionDefinition() as rows:
        rows.add_output(rows.define_tensor([-1, 4], contiguity=True).sum(1))
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(2))
        i, b, z = (fd.define_tensor([-1, -1], contiguity=True, dtype=kind) for kind in (torch.int64, torch.bool, DataType.ComplexFloat))
        v, n = fd.define_tensor([-1], contiguity=True), fd.define_tensor([-1], contiguity=True, dtype=torch.int64)
        w, s = fd.define_tensor([3, 5], contiguity=True), fd.define_scalar(DataType.Double)
    return {
        "fd": fd, "x": x, "y": y, "i": i, "b": b, "z": z, "v": v, "n": n, "w": w, "s": s, "other": other, "done": done, "recorded": recorded, "added": added, "scaled": scaled, "rows": rows,
        "t": torch.randn(3, 4), "torch": torch, "weft": weft, "F": F, "nn": weft.nn, "DataType": DataType, "FusionDefinition": FusionDefinition,
    }  # fmt: skip


@pytest.mark.parametrize(("text", "code"), MISTAKES, ids=[text for text, _ in MISTAKES])
def test_a_mistake_has_a_code_a_line_and_a_remedy(text: str, code: str, names: dict[str, Any]) -> None:
    with pytest.raises(WeftError) as caught:
        eval(text, dict(names))
    message = str(caught.value)
    assert message.startswith(code + ": "), message
    fix = message.partition("\n  fix: ")[2]
    assert "\n  at   " in message and len(fix) > 8, message


def test_there_are_as_many_as_were_wanted() -> None:
    assert len({text for text, _ in MISTAKES}) == len(MISTAKES) >= 282
