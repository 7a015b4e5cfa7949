"""torch's own samples (OpInfo) of the functions that torch has: results and gradients by weft.nn.functional are torch's, or the call is refused with a code."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from opinfo import entries
from torch.utils._pytree import tree_flatten

from weft import UserError
from weft.nn import functional as W

NAMES = {
    "softmax": "softmax", "log_softmax": "log_softmax", "nn.functional.layer_norm": "layer_norm", "nn.functional.rms_norm": "rms_norm",
    "nn.functional.group_norm": "group_norm", "nn.functional.batch_norm": "batch_norm", "nn.functional.instance_norm": "instance_norm",
    "nn.functional.normalize": "normalize", "nn.functional.gelu": "gelu", "nn.functional.silu": "silu", "nn.functional.kl_div": "kl_div",
    "nn.functional.cross_entropy": "cross_entropy",
}  # fmt: skip
MOST = 5
"""Samples of each, evenly picked: the emulator compiles each of them twice."""


def picked(name: str) -> tuple[Any, list[Any]]:
    entries([])  # makes torch's table importable without expecttest
    from torch.testing._internal.common_methods_invocations import op_db

    op = next(op for op in op_db if op.name == name and op.variant_test_name in ("", "default"))
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", torch.float64, requires_grad=True))
    return op, list(itertools.islice(samples, 0, None, max(1, -(-len(samples) // MOST))))


def outcome(function: Any, sample: Any) -> list[torch.Tensor | None]:
    """Return the result and the gradients of all that requires one. Running statistics are copies, since they are written into."""
    first, args, kwargs = torch.utils._pytree.tree_map(
        lambda v: (v.detach().clone().requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v), (sample.input, sample.args, sample.kwargs)
    )
    result = function(first, *args, **kwargs)
    leaves = [v for v in tree_flatten((first, args, kwargs))[0] if isinstance(v, torch.Tensor) and v.requires_grad]
    if not leaves or not result.requires_grad:
        return [result]
    g = torch.Generator().manual_seed(1)
    seed = torch.randn(result.shape, generator=g, dtype=torch.float64).to(result.dtype)
    return [result, *torch.autograd.grad(result, leaves, seed, allow_unused=True)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_samples_of_torch(name: str) -> None:
    op, samples = picked(name)
    right = 0
    for sample in samples:
        try:
            got = outcome(getattr(W, NAMES[name]), sample)
        except UserError as refused:
            assert refused.code in ("W142", "W328"), refused  # an argument that the function says it does not take; the number of elements that are not 0
            continue
        for a, b in zip(got, outcome(op.op, sample)):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-8, equal_nan=True)
        right += 1
    assert right >= 2, (name, right, len(samples))
