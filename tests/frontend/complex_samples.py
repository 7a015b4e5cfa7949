"""torch's own samples (OpInfo) in complex64 through torch.compile: results, layouts and gradients beside eager torch.

    python tests/frontend/complex_samples.py --seconds 600 [--share 0/2]      in the emulator, without its checks; needs expecttest

Two samples of each op. Left out are ops that torch runs anyway (decompositions of matrices) or that are random. Read first: `difference`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("WEFT_CHECK", "")

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from weft.frontend.backend import GRAPHS, backend

LEFT_OUT = ("linalg", "svd", "eig", "lu", "qr", "chol", "lstsq", "rand", "normal", "empty", "sparse", "stft", "masked", "cov", "corr", "pinverse")
SAMPLES = 2


def samples(op: Any) -> Iterator[tuple[Callable[..., Any], list[Tensor]]]:
    """Yield calls of an op as functions of their tensors."""
    for sample in itertools.islice(op.sample_inputs("cpu", torch.complex64, requires_grad=False), SAMPLES):
        given, shape = tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [n for n, value in enumerate(given) if isinstance(value, Tensor)]

        def call(*tensors: Tensor, given: list[Any] = given, shape: Any = shape, places: list[int] = places) -> Any:
            values = list(given)
            for n, tensor in zip(places, tensors):
                values[n] = tensor
            first, args, keywords = tree_unflatten(values, shape)
            return op(first, *args, **keywords)

        yield call, [given[n] for n in places]


def run(function: Callable[..., Any], inputs: list[Tensor], differentiates: bool) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return the results of a call, and the gradients of the sum of their squares."""
    leaves = [x.detach().clone().requires_grad_(differentiates and (x.is_complex() or x.is_floating_point())) for x in inputs]
    results = [r for r in tree_flatten(function(*leaves))[0] if isinstance(r, Tensor)]
    losses = [r.abs().square().sum() for r in results if r.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
    return [r.detach() for r in results], [x.grad for x in leaves]


def difference(function: Callable[..., Any], inputs: list[Tensor], differentiates: bool) -> str | None:
    """Return how the compiled call differs from eager torch, "" for not at all; None if eager torch raises an error."""
    try:
        wanted, slopes = run(function, inputs, differentiates)
    except Exception:  # noqa: BLE001  (samples that torch itself does not differentiate)
        return None
    torch._dynamo.reset()
    try:
        results, gradients = run(torch.compile(function, backend=backend, options={"emulate": True, "debug": True, "strict": True}), inputs, differentiates)
        for got, want in zip(results, wanted, strict=True):
            strides = [(a, b) for n, a, b in zip(want.shape, got.stride(), want.stride()) if n > 1 and want.numel()]
            assert got.dtype is want.dtype and got.is_conj() == want.is_conj() and all(a == b for a, b in strides), f"{got.dtype}, strides {strides}"
            torch.testing.assert_close(got.resolve_conj(), want.resolve_conj(), rtol=1e-4, atol=1e-4, equal_nan=True)
        for got, want in zip(gradients, slopes, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3, equal_nan=True)
    except Exception as error:  # noqa: BLE001  (whatever it is, it is reported)
        return f"{type(error).__name__}: {str(error)[:200]}"
    fallbacks = [call.fallback_reason for graph in GRAPHS for call in graph.calls if call.fallback_reason]
    return fallbacks[0] if fallbacks else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--share", default="0/1")
    given = parser.parse_args()
    from torch.testing._internal.common_methods_invocations import op_db

    first, step = map(int, given.share.split("/"))
    end, right, wrong, left = time.monotonic() + given.seconds, 0, 0, 0
    ops = [op for op in op_db if op.supports_dtype(torch.complex64, "cpu") and not any(word in op.name for word in LEFT_OUT)]
    for op in ops[first::step]:
        if time.monotonic() > end:
            print(f"the time is up before {op.name}")
            break
        for function, inputs in samples(op):
            found = difference(function, inputs, op.supports_autograd)
            right, wrong, left = right + (found == ""), wrong + bool(found), left + (found is None)
            if found:
                print(f"{op.name}: {found}", flush=True)
    print(f"{right} right, {wrong} wrong, {left} that eager torch does not run or differentiate")


if __name__ == "__main__":
    main()
