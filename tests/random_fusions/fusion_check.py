"""Runs a random fusion and compares it with the reference interpreter.

Read first: `check`.
"""

from __future__ import annotations

import contextlib
import itertools
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from fusion_case import Case

from weft import DataType, FusionDefinition
from weft.compiler import NoScheduler
from weft.options import options
from weft.reference import narrow
from weft.reference.bounds import evaluate_with_bounds
from weft.reference.torch_types import torch_dtype

@dataclass(frozen=True)
class Outcome:
    """What became of a case. kind: "ok", "declined" (by every scheduler), "ill-conditioned" (no reference to compare with), "mismatch", or an error's class.

    detail: why, in words; scheduler: who took it.
    """

    kind: str
    detail: str = ""
    scheduler: str = ""

    @property
    def is_failure(self) -> bool:
        return self.kind not in ("ok", "declined", "ill-conditioned")


@contextlib.contextmanager
def poisoned_outputs() -> Iterator[None]:
    """Fill what the runtime allocates for outputs with a value that no fusion computes; not what is traced, which has no memory."""
    places = [(torch._C._dynamo.guards, "_empty_strided_cpu"), (torch._C._dynamo.guards, "_empty_strided_cuda"), (torch, "empty_strided")]
    kept = [(home, name, getattr(home, name)) for home, name in places if hasattr(home, name)]

    def poisoning(function: Any) -> Any:
        def allocate(*args: Any, **kwargs: Any) -> torch.Tensor:
            out = function(*args, **kwargs)
            if type(out) is not torch.Tensor or out.is_meta:
                return out
            storage = torch.empty(0, dtype=torch.uint8, device=out.device).set_(out.untyped_storage())
            storage.fill_(1 if out.dtype is torch.bool else 0x7F)
            if out.dtype.is_floating_point and "float4" not in str(out.dtype):  # which has no NaN
                torch.empty(0, dtype=out.dtype, device=out.device).set_(out.untyped_storage()).fill_(float("nan"))
            return out

        return allocate

    for home, name, function in kept:
        setattr(home, name, poisoning(function))
    try:
        yield
    finally:
        for home, name, function in kept:
            setattr(home, name, function)


def check(case: Case, device: str = "cpu", seed: int | None = None, partition: str = "best") -> Outcome:
    """Run a case and compare its outputs with the reference. partition: the setting of that name."""
    with FusionDefinition() as fd:
        case.define(fd)
    return check_call(fd, case, device, partition)


def check_shapes(case: Case, device: str, count: int, largest_elems: int) -> Outcome:
    """Define a case once, with symbolic sizes, and check it at `count` sizes of its loops; return the first failure, else how it went at last."""
    case = case.with_symbolic_sizes()
    with FusionDefinition() as fd:
        case.define(fd)
    outcome = Outcome("ok")
    for sized in itertools.islice(case.at_other_sizes(largest_elems), count):
        outcome = check_call(fd, sized, device)
        if outcome.is_failure:
            return Outcome(outcome.kind, f"at {dict(sized.sizes)}: {outcome.detail}", outcome.scheduler)
    return outcome


def check_call(fd: FusionDefinition, case: Case, device: str = "cpu", partition: str = "best") -> Outcome:
    """Run a case, whose definition is `fd`, and compare its outputs with the reference."""
    inputs = case.arguments(device)
    found = evaluate_with_bounds(fd.fusion, inputs, hidden=True)
    wanted = [f.value.clone() for f in found]  # a view of an input changes with it
    kinds = [v.dtype() for v in fd.fusion.outputs()]
    allowed = [torch.zeros_like(_wide(f.value).abs()) if f.bound is None else f.bound.to("cpu") for f in found]
    if any(is_undecided(w, a) for w, a in zip(wanted, allowed)):
        return Outcome("ill-conditioned")
    kept = [i.clone() if isinstance(i, torch.Tensor) else i for i in inputs]
    try:
        with poisoned_outputs(), options(check="races" if device == "cpu" else "", partition=partition, strict_schedules=True):
            outputs = fd.execute(inputs)
            if device != "cpu":
                torch.cuda.synchronize()
    except NoScheduler as error:
        return Outcome("declined", "\n".join(f"{k}: {v}" for k, v in error.reasons.items()))
    except Exception as error:  # noqa: BLE001  (every error is what is looked for)
        return Outcome(type(error).__name__, f"{error}\n{traceback.format_exc(limit=-6)}")
    fusion, written = fd.fusion, {case_input(case, target) for _, target in case.aliases}
    visible = iter(outputs)
    outputs = [inputs[fusion.inputs().index(fusion.aliases[v])] if v in fusion.hidden_outputs else next(visible) for v in fusion.outputs()]
    runtimes = fd.fec.kernel_runtimes
    scheduler = runtimes[-1].scheduler if runtimes else "no kernel"
    for n, (output, reference, bound, kind) in enumerate(zip(outputs, wanted, allowed, kinds, strict=True)):
        problem = difference(output, reference, bound, kind)
        if problem:
            return Outcome("mismatch", f"output {n}, {[*case.outputs, *case.aliases][n]}: {problem}", scheduler)
    for n, (before, after) in enumerate(zip(kept, inputs)):
        if isinstance(before, torch.Tensor) and n not in written and not is_same(before, after):
            return Outcome("mismatch", "an input was written", scheduler)
    return Outcome("ok", scheduler=scheduler)


def case_input(case: Case, name: str) -> int:
    """Return which input is called `name`."""
    return [given.name for given in case.inputs].index(name)


def _wide(values: torch.Tensor) -> torch.Tensor:
    """On the CPU: a definition without tensors runs on the GPU, if there is one, and its reference does not."""
    return values.to("cpu", torch.complex128 if values.is_complex() else torch.float64)


def is_undecided(wanted: torch.Tensor, allowed: torch.Tensor) -> bool:
    """True when rounding explains errors of a twentieth of the largest value, for most elements: they would hide mistakes."""
    size = _wide(wanted).abs().nan_to_num(nan=0.0, posinf=0.0)
    return bool(size.numel()) and bool((allowed > 0.05 * size.max().clamp(min=1e-3)).float().mean() > 0.5)


def _is_equal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Tell where two tensors have the same numbers, or none both."""
    return (a == b) | (a.isnan() & b.isnan())


def unpacked(tensor: torch.Tensor, kind: DataType) -> torch.Tensor:
    """Return the values of an output of 4 bits, two of which share a byte along the last axis; others as they are."""
    return narrow.values_of(tensor, kind) if kind is DataType.Float4_e2m1fn else tensor


def is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True when two tensors are equal; those of 4 bits by their bytes, since torch compares no others."""
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8)) if a.dtype == torch.float4_e2m1fn_x2 else bool(_is_equal(_wide(a), _wide(b)).all())


def difference(output: torch.Tensor, wanted: torch.Tensor, allowed: torch.Tensor, kind: DataType) -> str:
    """Return how an output differs from the reference, or ""."""
    dtype = torch_dtype(kind)
    if output.dtype is dtype and kind is DataType.Float4_e2m1fn:
        output, dtype = unpacked(output, kind), torch.float64
    if output.dtype is not dtype or output.shape != wanted.shape:
        return f"{output.dtype} {tuple(output.shape)} instead of {dtype} {tuple(wanted.shape)}"
    error = torch.where(_is_equal(_wide(output), _wide(wanted)), 0.0, (_wide(output) - _wide(wanted)).abs())
    wrong = ~(error <= allowed) & ~allowed.isinf()
    if not bool(wrong.any()):
        return ""
    place = int(error.nan_to_num(nan=float("inf")).argmax())
    at = [int(i) for i in torch.unravel_index(torch.tensor(place), output.shape)] if output.dim() else []
    return f"{int(wrong.sum())} of {output.numel()} elements differ; at {at}: {output.flatten()[place].item()} instead of {wanted.flatten()[place].item()}"
