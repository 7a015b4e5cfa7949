"""Activations as composites: one formula of Float each, returned in the type of x, equal to torch's function of that name.

Owns their formulas. Read first: `_activation`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from ..ir.fusion import Fusion
from ..ir.values import TensorView
from .calls import Calls
from .gradients import with_gradient
from .composites import WrongChoice, _float, _tensor, composite, narrowed, wide


def _activation(name: str, formula: Callable[..., Any], text: str, **defaults: Any) -> None:
    """Add an activation: formula(o, x, parameters) on x in Float; `defaults`: its parameters."""

    def function(fusion: Fusion, x: Any, *args: Any, **kwargs: Any) -> TensorView:
        bound = signature.bind(fusion, x, *args, **kwargs)
        bound.apply_defaults()
        values = list(bound.arguments.values())[2:]
        return narrowed(formula(Calls(fusion), _float(name, _tensor(name, x)), *values), x.dtype())

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("fusion", kind, annotation=Fusion), inspect.Parameter("x", kind, annotation=TensorView)]
    parameters += [inspect.Parameter(key, kind, default=value, annotation=type(value)) for key, value in defaults.items()]
    signature = inspect.Signature(parameters, return_annotation=TensorView)
    function.__name__, function.__doc__, function.__signature__ = name, f"Return {text}: torch.nn.functional.{name}.", signature  # type: ignore[attr-defined]
    composite(function)


def gelu_formula(o: Calls, x: Any, approximate: str = "none") -> Any:
    """Return x times the normal distribution's function at x, or its approximation by tanh. Errors: WrongChoice."""
    if approximate == "tanh":
        return 0.5 * x * (1.0 + o.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    if approximate != "none":
        raise WrongChoice(op="gelu", argument="approximate", given=approximate, allowed="'none' or 'tanh'")
    return 0.5 * x * (1.0 + o.erf(x * math.sqrt(0.5)))


def gelu_gradient(o: Calls, g: Any, x: Any, approximate: str = "none") -> Any:
    """Return g times the derivative of `gelu_formula`: of x Phi(x), or of 0.5 x (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    if approximate == "none":
        cdf = 0.5 * (1.0 + o.erf(x * math.sqrt(0.5)))
        return g * (cdf + x * (o.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))))
    square = x * x
    tanh = o.tanh(math.sqrt(2 / math.pi) * (x * (1.0 + 0.044715 * square)))
    slope = math.sqrt(2 / math.pi) * (1.0 + 3 * 0.044715 * square)
    return g * (0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope)


def _elu(o: Calls, x: Any, alpha: Any, scale: float = 1.0, inner: Any = 1.0) -> Any:
    return o.where(o.gt(x, 0.0), scale * x, (scale * alpha) * o.expm1(x / inner if inner != 1.0 else x))


def _softplus(o: Calls, x: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Any:
    return o.where(o.gt(x * beta, threshold), x, o.log1p(o.exp(o.minimum(x * beta, threshold))) / beta)


def _logsigmoid(o: Calls, x: Any) -> Any:
    return o.minimum(x, 0.0) - o.log1p(o.exp(-o.abs(x)))


def _gelu(o: Calls, x: Any, approximate: str = "none") -> Any:
    out = gelu_formula(o, x, approximate)
    return with_gradient(out, [x], lambda o, g, y, x: gelu_gradient(o, g, x, approximate))


_activation("gelu", _gelu, "x times the normal distribution's function at x", approximate="none")
_activation("relu6", lambda o, x: o.clamp(x, 0.0, 6.0), "x limited to 0 .. 6")
_activation("leaky_relu", lambda o, x, slope: o.where(o.gt(x, 0.0), x, x * slope), "x above 0, else x * negative_slope", negative_slope=0.01)
_activation("elu", lambda o, x, alpha: _elu(o, x, alpha), "x above 0, else alpha * (exp(x) - 1)", alpha=1.0)
_activation("celu", lambda o, x, alpha: _elu(o, x, alpha, 1.0, alpha), "x above 0, else alpha * (exp(x / alpha) - 1)", alpha=1.0)
_activation("selu", lambda o, x: _elu(o, x, 1.6732632423543772, 1.0507009873554805), "elu with the constants of self-normalizing networks")
_activation("softplus", _softplus, "log(1 + exp(beta x)) / beta, x itself above the threshold", beta=1.0, threshold=20.0)
_activation("logsigmoid", _logsigmoid, "log(sigmoid(x))")
_activation("mish", lambda o, x: x * o.tanh(_softplus(o, x)), "x * tanh(softplus(x))")
_activation("hardtanh", lambda o, x, low, high: o.clamp(x, low, high), "x limited to min_val .. max_val", min_val=-1.0, max_val=1.0)
_activation("hardsigmoid", lambda o, x: o.clamp(x + 3.0, 0.0, 6.0) / 6.0, "x + 3 limited to 0 .. 6, over 6")
_activation("hardswish", lambda o, x: x * o.clamp(x + 3.0, 0.0, 6.0) / 6.0, "x * hardsigmoid(x)")
_activation("softsign", lambda o, x: x / (1.0 + o.abs(x)), "x / (1 + |x|)")
_activation("tanhshrink", lambda o, x: x - o.tanh(x), "x - tanh(x)")
_activation("softshrink", lambda o, x, lam: o.where(o.gt(o.abs(x), lam), x - o.sign(x) * lam, x * 0.0), "x moved towards 0 by lambd", lambd=0.5)
_activation("hardshrink", lambda o, x, lam: o.where(o.gt(o.abs(x), lam), x, x * 0.0), "x where |x| > lambd, else 0", lambd=0.5)
_activation("square", lambda o, x: x * x, "x * x")


def _gated(name: str, gate: Callable[..., Any], text: str) -> None:
    def function(fusion: Fusion, a: Any, b: Any) -> TensorView:
        return narrowed(gate(Calls(fusion), _float(name, _tensor(name, a))) * wide(b), a.dtype())

    function.__name__, function.__doc__ = name, text
    composite(function)


_gated("swiglu", lambda o, a: o.silu(a), "Return silu(a) * b.")
_gated("geglu", lambda o, a: gelu_formula(o, a, "tanh"), "Return gelu(a) * b, gelu by tanh.")
_gated("geglu_exact", lambda o, a: gelu_formula(o, a), "Return gelu(a) * b, gelu by erf.")
_gated("reglu", lambda o, a: o.relu(a), "Return relu(a) * b.")
