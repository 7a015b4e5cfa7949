"""The cases of bench/surface.py: what is measured side by side computes the same, and sizes and names choose what they say."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

BENCH = str(Path(__file__).resolve().parents[2] / "bench")
NAMES = ("rms_norm", "add_rms_norm", "layer_norm", "softmax", "swiglu", "geglu", "cross_entropy", "gemma_rms_norm", "rope")


@pytest.fixture(scope="module")
def cases() -> Any:
    sys.path.insert(0, BENCH)
    try:
        yield importlib.import_module("surface_cases")
    finally:
        sys.path.remove(BENCH)


def results(f: Any, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Outputs and gradients, the gradients of the outputs the same for every function."""
    made = f(*tensors)
    outputs = list(made) if isinstance(made, tuple) else [made]
    torch.manual_seed(1)
    grads = [torch.randn(o.shape).to(o.dtype) for o in outputs]
    return [o.detach() for o in outputs] + list(torch.autograd.grad(outputs, [t for t in tensors if t.requires_grad], grads))


@pytest.mark.parametrize("name", NAMES)
def test_weft_and_eager_compute_the_same(cases: Any, name: str) -> None:
    (case,) = cases.chosen([name], [3], [256])
    torch.manual_seed(0)
    tensors = [t.detach().cpu().requires_grad_(t.requires_grad) for t in case.tensors()]
    wide = [t.detach().double().requires_grad_() if t.requires_grad else t for t in tensors]
    wide = [t.double() if t.is_floating_point() and not t.requires_grad else t for t in wide]
    for found, wanted in zip(results(case.ours, tensors), results(case.theirs, wide), strict=True):
        assert float((found.double() - wanted).abs().max()) <= 0.02 * float(wanted.abs().max()), name


def test_sizes_and_names_choose(cases: Any) -> None:
    assert [(c.name, c.rows, c.hidden) for c in cases.chosen(["softmax", "cross_entropy"], [1, 5], [8])] == [
        ("softmax", 1, 8), ("softmax", 5, 8), ("cross_entropy", 1, 8), ("cross_entropy", 5, 8),
    ]  # fmt: skip
    assert cases.chosen(None, None, None) == cases.CASES
    assert {c.name for c in cases.chosen(["rope"], None, None)} == {"rope"}
    with pytest.raises(SystemExit, match="no such function: sofmax"):
        cases.chosen(["sofmax"], None, None)


def test_quack_gets_float32_weights_and_half_of_the_angles(cases: Any) -> None:
    x, *weights = cases.arguments("quack", "layer_norm", cases.chosen(["layer_norm"], [2], [8])[0].tensors())
    assert x.dtype is torch.bfloat16 and all(w.dtype is torch.float32 and w.is_leaf and w.requires_grad for w in weights)
    given = cases.chosen(["rope"], [3], [256])[0].tensors()
    for whole, half in zip(given[1:], cases.arguments("quack", "rope", given)[1:], strict=True):
        assert half.shape == (3, 64) and torch.equal(torch.cat((half, half), 1), whole[:, 0])
    assert cases.arguments("weft", "rope", given) is given
