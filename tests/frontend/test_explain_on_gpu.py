"""Times that weft.explain tells on a GPU."""

from __future__ import annotations

import re

import pytest
import torch

import weft
from weft.frontend.backend import backend

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def test_a_region_is_timed_beside_its_bytes() -> None:
    """67 MB read and written: at least 25 us on any chip of today, at most a second."""
    torch._dynamo.reset()
    x = torch.randn(4096, 4096, device="cuda", requires_grad=True)
    torch.compile(lambda x: torch.softmax(x * 2, -1) @ x[:, :8], backend=backend)(x).sum().backward()
    text = weft.explain(times=True)
    found = [float(number) for number in re.findall(r"([\d.]+) us, [\d.]+ TB/s", text)]
    assert len(found) == text.count("kernels: ") and all(25 < number < 1e6 for number in found), text
    torch._dynamo.reset()
