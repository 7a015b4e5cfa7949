"""Recipes behind norms and activations, one kernel each: `rms_norm_nvfp4` and so on. Each is a row of `_BEFORE` with a row of `_RECIPES`, of which anybody may
write more with `quantize`.

Those per tensor also return the largest magnitude; behind a norm, a second kernel folds one number per row to it. Signatures for editors are in `behind.pyi`,
made by docs/make_stubs.py. Read first: `behind`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..runtime.argument_kinds import checked
from .before import BY_ROWS
from .formats import E4M3, FP4, Mx, Per1x128, PerRow, PerTensor, Recipe, layout_for
from .functions import Results, _nvfp4, quantize

_BEFORE = {  # op before the recipe -> names of its tensors, and what it computes
    "rms_norm": (("x", "weight"), "rms_norm(x) * weight"),
    "add_rms_norm": (("x", "residual", "weight"), "rms_norm(x + residual) * weight, and x + residual"),
    "layer_norm": (("x", "weight", "bias"), "layer_norm(x)"),
    "silu_mul": (("x", "y"), "silu(x) * y"),
}


def _argument(name: str, annotation: str, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation, default=default)


_LAYOUT = _argument("layout", "str", "rows")
_EPS = _argument("eps", "float", 1e-5)


@dataclass(frozen=True)
class _Form:
    """A recipe. make: (whether the op before keeps rows, the recipe's arguments) -> recipe. has_scale: the first argument is a scale, which is passed to the
    kernel."""

    make: Callable[..., Recipe]
    arguments: tuple[inspect.Parameter, ...] = ()
    has_scale: bool = False


_RECIPES = {
    "nvfp4": _Form(lambda _, scale, layout: _nvfp4(scale, layout), (_argument("global_scale", "torch.Tensor | None", None), _LAYOUT), has_scale=True),
    "mxfp8": _Form(lambda _, layout: Mx(E4M3, layout_for("blocks", layout)), (_LAYOUT,)),
    "mxfp4": _Form(lambda _, layout: Mx(FP4, layout_for("blocks", layout)), (_LAYOUT,)),
    "per_row": _Form(lambda _: PerRow()),
    "per_tensor": _Form(lambda is_by_rows, _: PerTensor(is_by_rows=is_by_rows), (_argument("scale", "torch.Tensor"),), has_scale=True),
    "per_1x128": _Form(lambda _, layout: Per1x128(E4M3, layout_for("1x128", layout)), (_LAYOUT,)),
}


def behind(before: str, recipe: str) -> Callable[..., Results]:
    """Return the function of a recipe after an op: its arguments are the op's tensors, then the recipe's, then eps for a norm."""
    tensors, computed = _BEFORE[before]
    form, is_by_rows = _RECIPES[recipe], before in BY_ROWS
    arguments = [*(_argument(name, "torch.Tensor") for name in tensors), *form.arguments, *([_EPS] if is_by_rows else [])]
    signature = inspect.Signature(arguments, return_annotation="Results")
    defaults = tuple(argument.default for argument in arguments if argument.default is not argument.empty)
    own, last, needed = len(tensors), len(tensors) + len(form.arguments), len(arguments) - len(defaults)

    def run(*args: Any, **keywords: Any) -> Results:
        if keywords or not needed <= len(args) <= len(arguments):  # binding to a signature takes as long as all the rest
            bound = signature.bind(*args, **keywords)
            bound.apply_defaults()
            values = bound.args
        else:
            values = args + defaults[len(args) - needed :]
        scale = values[own] if form.has_scale else None
        eps = values[last] if is_by_rows else _EPS.default
        return quantize(form.make(is_by_rows, *values[own:last]), *values[:own], before=before, scale=scale, eps=eps)

    run.__name__ = run.__qualname__ = f"{before}_{recipe}"
    run.__doc__ = f"{recipe} of {computed}."
    run.__signature__ = signature  # type: ignore[attr-defined]
    return checked(run)


FUNCTIONS = {f"{before}_{recipe}": behind(before, recipe) for before in _BEFORE for recipe in _RECIPES}
globals().update(FUNCTIONS)
