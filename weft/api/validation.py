"""Comparison of a fusion's outputs with references: the caller's, or the fusion evaluated by torch in double precision.

Owns what counts as equal. The evaluation and the tolerances are in `weft.reference`; nothing here produces outputs for a caller.
Read first: `check_outputs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UserError
from ..ir.fusion import Fusion
from .executors import flattened


class ResultMismatch(UserError, AssertionError):
    code = "W170"
    what = "output {index}, {value}: {difference}"
    fix = "compare with more careful references, or report a wrong result with fd.repro_script_for(inputs)"


class WrongReferenceCount(UserError, AssertionError):
    code = "W171"
    what = "the fusion returned {outputs} outputs, and {references} reference outputs were given"
    fix = "give one reference per returned output (aliased outputs are not returned unless added plainly too)"


@dataclass
class KeptInputs:
    """Inputs as they were before an execution, and the state of the random generators then."""

    values: list[Any]
    generators: "dict[int | None, torch.Tensor]"


def kept_inputs(fusion: Fusion, inputs: Sequence[Any]) -> KeptInputs:
    """Return the inputs, those that the fusion overwrites as copies."""
    written = {id(source) for source in fusion.aliases.values()}
    values = flattened(inputs)
    for position, source in enumerate(fusion.inputs()):
        if id(source) in written and position < len(values) and isinstance(values[position], torch.Tensor):
            values[position] = values[position].detach().clone(memory_format=torch.preserve_format)
    return KeptInputs(values, _generator_states(values))


def _generator_states(values: Sequence[Any]) -> "dict[int | None, torch.Tensor]":
    states: dict[int | None, torch.Tensor] = {None: torch.get_rng_state()}
    for value in values:
        if isinstance(value, torch.Tensor) and value.is_cuda and value.device.index not in states:
            states[value.device.index] = torch.cuda.get_rng_state(value.device)
    return states


@contextmanager
def _as_before(kept: KeptInputs) -> Iterator[None]:
    """Put the random generators back to where they were before the execution, for the time of the block."""
    now = {index: torch.get_rng_state() if index is None else torch.cuda.get_rng_state(index) for index in kept.generators}
    _set_generators(kept.generators)
    try:
        yield
    finally:
        _set_generators(now)


def _set_generators(states: "dict[int | None, torch.Tensor]") -> None:
    for index, state in states.items():
        if index is None:
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, index)


def get_val_tolerances(fusion: Fusion, args: Sequence[Any]) -> list[tuple[float, float]]:
    """Return (absolute, relative) tolerance per output, from the sizes of the reductions that lead to it."""
    from ..reference.tolerance import get_val_tolerances as tolerances

    return tolerances(fusion, flattened(args))


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
    all_tolerances = get_val_tolerances(fusion, kept.values)
    tolerances = [t for value, t in zip(fusion.outputs(), all_tolerances) if value not in fusion.hidden_outputs]
    if references is None:
        references = _evaluated(fusion, kept)
    if len(references) != len(outputs):
        raise WrongReferenceCount(outputs=len(outputs), references=len(references))
    for index, (value, output, reference, tolerance) in enumerate(zip(returned, outputs, references, tolerances)):
        difference = _difference(output, reference, *tolerance)
        if difference is not None:
            raise ResultMismatch(index=index, value=value, difference=difference)


def _evaluated(fusion: Fusion, kept: KeptInputs) -> list[Any]:
    """Return what torch computes for the returned outputs, in the types of the fusion."""
    from ..reference.interpreter import evaluate
    from ..reference.torch_types import torch_dtype

    with _as_before(kept):
        results = evaluate(fusion, kept.values, precision="double")
    outputs = fusion.outputs()
    if len(results) == len(outputs):
        results = [r for value, r in zip(outputs, results) if value not in fusion.hidden_outputs]
    returned = [value for value in outputs if value not in fusion.hidden_outputs]
    return [r.to(torch_dtype(value.dtype())) if isinstance(r, torch.Tensor) else r for value, r in zip(returned, results)]  # type: ignore[attr-defined]


def _difference(output: Any, reference: Any, absolute: float, relative: float) -> str | None:
    """Return how two results differ in words, or None."""
    if not isinstance(output, torch.Tensor) or not isinstance(reference, torch.Tensor):
        return None if output == reference else f"{output!r} instead of {reference!r}"
    if output.dtype != reference.dtype:
        return f"its dtype is {output.dtype}, the reference's {reference.dtype}"
    if output.shape != reference.shape:
        return f"its shape is {tuple(output.shape)}, the reference's {tuple(reference.shape)}"
    wide = torch.complex128 if output.is_complex() else torch.float64
    got, want = output.detach().to(wide), reference.detach().to(device=output.device, dtype=wide)
    wrong = ~torch.isclose(got, want, atol=absolute, rtol=relative, equal_nan=True)
    if not bool(wrong.any()):
        return None
    error = torch.where(wrong, (got - want).abs(), torch.zeros((), dtype=torch.float64, device=got.device)).nan_to_num(nan=float("inf"))
    place = int(error.argmax())
    at = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), output.shape)) if output.dim() else ()
    return (
        f"{int(wrong.sum())} of {output.numel()} elements differ; the worst, at {at}, is {got.flatten()[place].item()} instead of "
        f"{want.flatten()[place].item()} (tolerance {absolute:g} + {relative:g} * |reference|)"
    )
