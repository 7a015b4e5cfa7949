"""Comparison of a fusion's outputs with references: the caller's, or the fusion evaluated by torch in double precision.

Owns what counts as equal. The evaluation and the tolerances are in `weft.reference`; nothing here produces outputs for a caller.
Read first: `check_outputs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..errors import Unsupported, UserError, shown
from ..ir.fusion import Fusion
from ..ir.values import TensorView
from ..reference import narrow, tolerance
from ..reference.bounds import evaluate_with_bounds
from ..reference.interpreter import NoGenerator, packed_dim
from ..reference.torch_types import torch_dtype
from ..runtime.argument_kinds import checked
from ..runtime.arguments import flattened
from ..runtime.philox_state import OFFSET_PER_OP, generator_of


class ResultMismatch(UserError, AssertionError):
    code = "W170"
    what = "output {index}, {value}: {difference}"
    fix = "compare with more careful references, or report a wrong result with fd.repro_script_for(inputs)"


class NoListOfReferences(UserError, TypeError):
    code = "W173"
    what = "the references are {given}; they are a list with one tensor per output"
    fix = "write validate(inputs, [reference])"


class NoReference(UserError, TypeError):
    code = "W174"
    what = "reference {index} is {given}; references are tensors of torch"
    fix = "pass torch.as_tensor(value), of the output's type and shape"


class WrongReferenceCount(UserError, AssertionError):
    code = "W171"
    what = "the fusion returned {outputs} outputs, and {references} reference outputs were given"
    fix = "pass one reference per returned output (an aliased output is returned only if it is also added without alias_input)"


@dataclass(frozen=True)
class Allowed:
    """How far an output may lie from a reference: absolute + relative * |reference|, or, where that is more, `bound` (one per element)."""

    absolute: float = 0.0
    relative: float = 0.0
    bound: torch.Tensor | None = None

    def limit(self, want: torch.Tensor) -> torch.Tensor:
        """Return the largest allowed difference of each element. Shapes: that of `want`, float64."""
        limit = self.absolute + self.relative * want.abs().to(torch.float64).nan_to_num(nan=0.0, posinf=0.0)
        return limit if self.bound is None else torch.maximum(limit, self.bound.to(want.device))


@dataclass(frozen=True)
class KeptInputs:
    """Inputs as they were before an execution; philox: the seed and offset (in Philox calls) of its random ops, None without any."""

    values: list[Any]
    philox: tuple[int, int] | None


def kept_inputs(fusion: Fusion, inputs: Sequence[Any]) -> KeptInputs:
    """Return the inputs, those that the fusion overwrites as copies."""
    written = {id(source) for source in fusion.aliases.values()}
    values = flattened(inputs)
    for position, source in enumerate(fusion.inputs()):
        if id(source) in written and position < len(values) and isinstance(values[position], torch.Tensor):
            values[position] = values[position].detach().clone(memory_format=torch.preserve_format)
    return KeptInputs(values, _philox_state(values) if fusion.random_op_count else None)


def _philox_state(values: Sequence[Any]) -> tuple[int, int]:
    """Return the state from which the next execution on these inputs draws."""
    tensors = [v for v in values if isinstance(v, torch.Tensor) and (v.dim() or v.is_cuda)]
    if tensors:
        device = tensors[0].device.index if tensors[0].is_cuda else None
    else:
        device = torch.cuda.current_device() if torch.cuda.is_available() else None
    generator = generator_of(device)
    return generator.initial_seed(), generator.get_offset() // OFFSET_PER_OP


@checked
def get_val_tolerances(fusion: Fusion, args: Sequence[Any]) -> list[tuple[float, float]]:
    """Return (absolute, relative) tolerance per output, from the sizes of the reductions that lead to it."""
    return tolerance.get_val_tolerances(fusion, flattened(args))


@checked
def validate_with_auto_inferred_outputs(fusion: Fusion, fusion_outputs: Sequence[Any], args: Sequence[Any]) -> None:
    """Compare outputs with an evaluation of the fusion by torch in double precision.

    Errors: ResultMismatch (an AssertionError).
    """
    check_outputs(fusion, fusion_outputs, kept_inputs(fusion, args), None)


def check_outputs(fusion: Fusion, outputs: Sequence[Any], kept: KeptInputs, references: Sequence[Any] | None) -> None:
    """Compare returned outputs with references, or with an evaluation: same type, same shape, values within the tolerances.

    Errors: WrongReferenceCount, ResultMismatch (both AssertionErrors).
    """
    returned = [value for value in fusion.outputs() if value not in fusion.hidden_outputs]
    if references is not None and not isinstance(references, (list, tuple)):
        raise NoListOfReferences(given=shown(references))
    if references is not None and len(references) != len(outputs):
        raise WrongReferenceCount(outputs=len(outputs), references=len(references))
    for index, (reference, output) in enumerate(zip(references or (), outputs)):
        if isinstance(output, torch.Tensor) and not isinstance(reference, torch.Tensor):
            raise NoReference(index=index, given=shown(reference))
    wanted_values, tolerances = _expected(fusion, kept) if references is None else (references, _tolerances(fusion, kept))
    for index, (value, output, reference, allowed) in enumerate(zip(returned, outputs, wanted_values, tolerances, strict=True)):
        wanted = torch_dtype(value.dtype()) if references is None and isinstance(value, TensorView) else None
        if isinstance(value, TensorView) and value.dtype().is_narrow_float and isinstance(output, torch.Tensor):
            output, reference, wanted = _values(value, output, wanted), _values(value, reference, wanted), None
        difference = _difference(output, reference, wanted, allowed)
        if difference is not None:
            raise ResultMismatch(index=index, value=value, difference=difference)


def _expected(fusion: Fusion, kept: KeptInputs) -> tuple[list[torch.Tensor], list[Allowed]]:
    """Return the values of an evaluation, and how far outputs may lie from them."""
    found = evaluate_with_bounds(fusion, kept.values, philox=kept.philox)
    return [f.value for f in found], [Allowed(bound=f.bound) for f in found]


def _tolerances(fusion: Fusion, kept: KeptInputs) -> list[Allowed]:
    """Return how far outputs may lie from a caller's references, which may have errors of the same size: also twice the bounds where there are any."""
    found = [(v, Allowed(*t)) for v, t in zip(fusion.outputs(), get_val_tolerances(fusion, kept.values)) if v not in fusion.hidden_outputs]
    try:
        bounds = [f.bound for f in evaluate_with_bounds(fusion, kept.values, philox=kept.philox)]
    except (Unsupported, NoGenerator):
        return [allowed for _, allowed in found]
    return [replace(allowed, bound=None if bound is None else 2 * bound) for (_, allowed), bound in zip(found, bounds, strict=True)]


def _values(value: TensorView, tensor: Any, dtype: torch.dtype | None) -> Any:
    """Return the values of a result of narrow floats; one that is not of torch's type for these is left as it is."""
    if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch_dtype(value.dtype()):
        return tensor
    return narrow.values_of(tensor, value.dtype(), packed_dim(value))


def _difference(output: Any, reference: Any, dtype: torch.dtype | None, allowed: Allowed) -> str | None:
    """Return how two results differ in words, or None. dtype: that of the output, when the reference is in another."""
    if not isinstance(output, torch.Tensor) or not isinstance(reference, torch.Tensor):
        return None if output == reference else f"{output!r} instead of {reference!r}"
    if output.dtype != (dtype or reference.dtype):
        return f"its dtype is {output.dtype}, the reference's {dtype or reference.dtype}"
    if output.shape != reference.shape:
        return f"its shape is {tuple(output.shape)}, the reference's {tuple(reference.shape)}"
    wide = torch.complex128 if output.is_complex() else torch.float64
    got, want = output.detach().to(wide), reference.detach().to(device=output.device, dtype=wide)
    if output.dtype.is_floating_point and output.dtype is not torch.float64:  # the reference has no largest number, the output's type has
        want = torch.where(want.abs() > torch.finfo(output.dtype).max, want.to(output.dtype).to(wide), want)
    error = torch.where((got == want) | (got.isnan() & want.isnan()), 0.0, (got - want).abs()).nan_to_num(nan=float("inf"))
    limit = allowed.limit(want)
    wrong = (error > limit) | error.isinf() & ~limit.isinf()
    if not bool(wrong.any()):
        return None
    place = int(torch.where(wrong, error, -1.0).argmax())
    at = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), output.shape)) if output.dim() else ()
    return (
        f"{int(wrong.sum())} of {output.numel()} elements differ; the worst, at {at}, is {got.flatten()[place].item()} instead of "
        f"{want.flatten()[place].item()} (rounding explains a difference of {limit.flatten()[place].item():.3g})"
    )
