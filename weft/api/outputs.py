"""Outputs of a definition, plain and aliased.

Owns the checks of add_output; what an alias means is kept in `Fusion.aliases` and `Fusion.hidden_outputs`.
"""

from __future__ import annotations

from typing import Any

from ..errors import UserError
from ..ir.fusion import Fusion
from ..ir.values import TensorView, Val
from .overloads import IncompatibleArguments


class ForeignValue(UserError):
    code = "W125"
    what = "{role} {value} belongs to another fusion"
    fix = "use values of the definition that the output is added to"


class ScalarOutput(UserError):
    code = "W128"
    what = "Non-TensorView outputs are not supported at this point: {output} is a scalar"
    fix = "make it a tensor with full(), or compute it in Python"


class AliasOfNonInput(UserError):
    code = "W126"
    what = "alias_input {alias} of output {output} is not an input of the fusion; its inputs are {inputs}"
    fix = "alias an input, or omit alias_input"


class AliasMismatch(UserError):
    code = "W127"
    what = "output {output} cannot be written into input {alias}: {attribute} is {of_output} for the output and {of_alias} for the input"
    fix = "{remedy}"


def add_output(fusion: Fusion, output: Any, alias_input: Any = None) -> None:
    """Add `output` to `fusion`, checked. See `FusionDefinition.add_output`.

    Errors: IncompatibleArguments (a TypeError), ForeignValue, AliasOfNonInput, AliasMismatch.
    """
    if not isinstance(output, Val) or not (alias_input is None or isinstance(alias_input, Val)):
        given = f"{type(output).__name__}, {type(alias_input).__name__}"
        signatures = "    1. (output: Val)\n    2. (output: Val, alias_input: Val)"
        several = isinstance(output, (list, tuple))
        remedy = "call add_output once for each of them" if several else "pass values of this definition: what define_tensor and fd.ops return"
        raise IncompatibleArguments(function="add_output", signatures=signatures, given=given, remedy=remedy)
    if output.fusion is not fusion:
        raise ForeignValue(role="output", value=output)
    if not isinstance(output, TensorView) and alias_input is None:
        raise ScalarOutput(output=output)
    if alias_input is None:
        fusion.add_output(output)
    else:
        _add_alias(fusion, output, alias_input)


def _add_alias(fusion: Fusion, output: Val, alias: Val) -> None:
    """Let `output` be written into the input `alias`, instead of what was to be written there before, and instead of into another input (as in nvFuser)."""
    _check_alias(fusion, output, alias)
    for earlier in [value for value, target in fusion.aliases.items() if target is alias and value is not output]:
        fusion.forget_alias(earlier)
    fusion.add_output(output, alias)


def _check_alias(fusion: Fusion, output: Val, alias: Val) -> None:
    if alias.fusion is not fusion:
        raise ForeignValue(role="alias_input", value=alias)
    if not any(value is alias for value in fusion.inputs()):
        raise AliasOfNonInput(alias=alias, output=output, inputs=", ".join(map(str, fusion.inputs())))
    if not (isinstance(output, TensorView) and isinstance(alias, TensorView)):
        kinds = [("a tensor" if isinstance(v, TensorView) else "a scalar") for v in (output, alias)]
        raise AliasMismatch(output=output, alias=alias, attribute="kind", of_output=kinds[0], of_alias=kinds[1], remedy="alias tensors only")
    if output.dtype() is not alias.dtype():
        raise AliasMismatch(
            output=output, alias=alias, attribute="dtype", of_output=output.dtype(), of_alias=alias.dtype(), remedy=f"cast the output to {alias.dtype()} first"
        )
    if output.ndim != alias.ndim:
        raise AliasMismatch(output=output, alias=alias, attribute="rank", of_output=output.ndim, of_alias=alias.ndim, remedy="make the ranks equal")


__all__ = ["add_output"]
