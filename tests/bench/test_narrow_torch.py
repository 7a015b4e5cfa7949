"""What torch.compile is timed with beside narrow casts computes the same bytes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from narrow import cases  # noqa: E402
from narrow_torch import reference  # noqa: E402

CASES = cases(128, 256, "cpu")


def as_rows(t: torch.Tensor, name: str) -> torch.Tensor:
    """Elements as bytes where they have one; scales whose rows are innermost as they lie in memory."""
    dense = t.t() if name == "1x128 columns" and t.dim() == 2 and t.stride(0) == 1 else t
    return dense.contiguous().view(torch.uint8).flatten() if t.dtype.itemsize == 1 else dense.contiguous().flatten()


@pytest.mark.parametrize("name", CASES)
def test_torch_computes_the_same(name):
    function, inputs = CASES[name]
    written = reference(name)
    if written is None:
        assert name == "nvfp4 in groups"
        return
    made, wanted = function(*inputs), written(*inputs)
    made, wanted = ([t] if isinstance(t, torch.Tensor) else list(t) for t in (made, wanted))
    for number, (a, b) in enumerate(zip(made, wanted, strict=True)):
        if "stochastic" in name and number == 0:
            assert a.numel() == b.numel()  # other random numbers
        elif a.dtype is torch.float32:
            torch.testing.assert_close(as_rows(a, name), as_rows(b, name), rtol=1e-5, atol=0)
        else:
            assert torch.equal(as_rows(a, name), as_rows(b, name))
