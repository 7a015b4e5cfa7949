"""Functions on a GPU against torch in float64, for all types, at odd sizes and at those of models."""

from __future__ import annotations

import pytest
import torch
from nn_functions import CASES, ODD, WIDE, with_gradients

ROUNDINGS = {torch.float64: 512, torch.float32: 64, torch.bfloat16: 2, torch.float16: 2}
"""Errors that are allowed, in units of the type's last place at the largest element: sums in float32 add up many roundings, 16 bits are rounded once."""


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [pytest.param(ODD, id="odd"), pytest.param(WIDE, id="wide")])
@pytest.mark.parametrize("dtype", ROUNDINGS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_against_float64(name: str, dtype: torch.dtype, sizes: dict[str, int]) -> None:
    case = CASES[name]
    inputs = case.make(sizes, dtype, "cuda")
    got, want = with_gradients(case.ours, inputs), with_gradients(case.theirs, case.exact(inputs))
    for a, b in zip([*got[0], *got[1]], [*want[0], *want[1]]):
        assert (a is None) == (b is None) and a is not None and b is not None
        assert a.isfinite().all()
        error = (a.double() - b).abs().max() / b.abs().max()
        assert error <= ROUNDINGS[dtype] * torch.finfo(dtype).eps, float(error / torch.finfo(dtype).eps)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_from_run_to_run(name: str) -> None:
    case = CASES[name]
    inputs = case.make(ODD, torch.bfloat16, "cuda")
    first = with_gradients(case.ours, inputs)
    for _ in range(3):
        again = with_gradients(case.ours, inputs)
        assert all(torch.equal(a, b) for a, b in zip([*first[0], *first[1]], [*again[0], *again[1]]))  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_under_autocast_types_are_those_of_torch(name: str) -> None:
    case = CASES[name]
    if "rms" in name and torch.__version__ < "2.13":
        pytest.skip("rms_norm came to torch's list with 2.13")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        ours, theirs = (f(*case.make(ODD, torch.bfloat16, "cuda")) for f in (case.ours, case.theirs))
    ours, theirs = (x[0] if isinstance(x, tuple) else x for x in (ours, theirs))
    assert ours.dtype is theirs.dtype or not case.float32_under_autocast
