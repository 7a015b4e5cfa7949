"""Pointwise ops of three operands, as data.

Owns names, types, CUDA text, torch references and cost of the ternary ops; `addcmul` is composed of `add` and `mul` (see `functions.py`).
Read first: `registry.OpDef`.
"""

from __future__ import annotations

import math
from typing import Any

from ..dtypes import DataType
from .promotion import Rule
from .registry import OpDef, define, torch

_MATH = ("math",)


def _clamp(x: Any, low: Any, high: Any) -> Any:
    return torch.minimum(torch.maximum(x, low), high)


define(
    OpDef(
        "where",
        3,
        Rule.keep,
        {"any": "weft::select<{T}>({0}, {1}, {2})"},
        lambda c, a, b: torch.where(c, a, b),
        fixed={0: DataType.Bool},
        python=lambda c, a, b: a if c else b,
        blocks=_MATH,
        source="two operands of one reduced float type keep it; otherwise their promotion",
        gradient=lambda o, g, y, c, a, b: (None, o.where(c, g, 0.0), o.where(c, 0.0, g)),
    )
)
define(
    OpDef(
        "lerp",
        3,
        Rule.floating,
        {"real": "weft::lerp({0}, {1}, {2})", "complex": "weft::lerp({0}, {1}, {2})"},
        lambda a, b, w: a + w * (b - a),
        python=lambda a, b, w: a + w * (b - a),
        blocks=_MATH,
        flops=4,
        ulp=2,
        source="torch.lerp: from the nearer end, a + w (b - a) for |w| < 0.5, else b - (b - a) (1 - w)",
        gradient=lambda o, g, y, a, b, w: (g * (1.0 - w), g * w, g * (b - a)),
    )
)
define(
    OpDef(
        "clamp",
        3,
        Rule.number,
        {
            "real": "weft::minimum(weft::maximum({0}, {1}), {2})",
            "int": "weft::int_min<{T}>(weft::int_max<{T}>({0}, {1}), {2})",
            "bool": "(({0} || {1}) && {2})",
        },
        _clamp,
        python=lambda x, low, high: min(max(x, low), high),
        blocks=_MATH,
        flops=2,
        source="torch.clamp: NaN stays NaN; the upper bound wins",
        gradient=lambda o, g, y, x, low, high: (o.where(o.bitwise_and(o.ge(x, low), o.le(x, high)), g, 0.0), None, None),
    )
)
define(
    OpDef(
        "threshold",
        3,
        Rule.number,
        {"real": "weft::threshold<{T}>({0}, {1}, {2})", "int": "weft::threshold<{T}>({0}, {1}, {2})", "bool": "weft::threshold<bool>({0}, {1}, {2})"},
        lambda x, threshold, value: torch.where(x <= threshold, value, x),
        python=lambda x, threshold, value: value if x <= threshold else x,
        blocks=_MATH,
        flops=2,
        is_steep=True,
        source="torch.threshold: x > threshold ? x : value; NaN stays NaN",
        gradient=lambda o, g, y, x, limit, value: (o.where(o.gt(x, limit), g, 0.0), None, None),
    )
)
define(
    OpDef(
        "fma",
        3,
        Rule.full_float,
        {"float": "::fmaf({0}, {1}, {2})"},
        lambda a, b, c: a * b + c,
        python=lambda a, b, c: a * b + c,
        blocks=_MATH,
        ulp=1,
        source="a * b + c, rounded once",
        is_internal=True,
    )
)
define(
    OpDef(
        "log_of_share",
        3,
        Rule.full_float,
        {"float": "weft::log_of_share({0}, {1}, {2})"},
        lambda p, t, log_b: torch.where((p < 0) | (p > 0), t - log_b, p - math.inf),
        python=lambda p, t, log_b: t - log_b if p < 0 or p > 0 else p - math.inf,
        blocks=_MATH,
        flops=4,
        ulp=1,
        source="log(exp(t) / b)",
        is_internal=True,
    )
)
