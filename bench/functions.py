"""Functions of one tensor, of a copy of the same bytes: what each costs beside moving its data.

    python bench/functions.py [OUT.json] [--rows 16384] [--columns 4096] [--only TEXT]

Read first: `FUNCTIONS`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import torch
from measure import device_of, measured, sized_parser, write

from weft import FusionDefinition
from weft.dtypes import DataType

FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "gelu with erf": lambda o, x: o.mul(o.mul(x, 0.5), o.add(1.0, o.erf(o.mul(x, 0.7071067811865476)))),
    "erf": lambda o, x: o.erf(x),
    "log": lambda o, x: o.log(o.abs(x)),
    "log1p": lambda o, x: o.log1p(o.abs(x)),
    "softplus": lambda o, x: o.log1p(o.exp(x)),
    "mish": lambda o, x: o.mul(x, o.tanh(o.log1p(o.exp(x)))),
    "gelu with tanh": lambda o, x: o.mul(o.mul(x, 0.5), o.add(1.0, o.tanh(o.mul(0.7978845608, o.add(x, o.mul(0.044715, o.mul(x, o.mul(x, x)))))))),
    "tanh": lambda o, x: o.tanh(x),
    "pow 1.5": lambda o, x: o.pow(o.abs(x), 1.5),
    "pow 1.7": lambda o, x: o.pow(o.abs(x), 1.7),
    "sin": lambda o, x: o.sin(x),
    "cos": lambda o, x: o.cos(x),
    "sqrt": lambda o, x: o.sqrt(o.abs(x)),
    "reciprocal": lambda o, x: o.reciprocal(x),
    "expm1": lambda o, x: o.expm1(x),
    "elu": lambda o, x: o.where(o.gt(x, 0.0), x, o.expm1(x)),
    "silu": lambda o, x: o.silu(x),
    "logsumexp": lambda o, x: o.log(o.sum(o.exp(x), [1])),
    "layer norm by division": lambda o, x: _layer_norm(o, x),
}


def _layer_norm(o: Any, x: Any) -> Any:
    variance, mean = o.var_mean(x, [1], correction=0, keepdim=True)
    return o.div(o.sub(x, mean), o.sqrt(o.add(variance, 1e-5)))


def definition(function: Callable[[Any, Any], Any], dtype: DataType) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=dtype)
        fd.add_output(fd.ops.cast(function(fd.ops, fd.ops.cast(x, DataType.Float)), dtype))
    return fd


def main() -> None:
    arguments = sized_parser(__doc__ or "").parse_args()
    device = device_of(arguments)
    rows, columns = (16, 256) if arguments.cpu_smoke else (arguments.rows, arguments.columns)
    found = []
    for name, function in FUNCTIONS.items():
        for dtype, kind in ((DataType.BFloat16, torch.bfloat16), (DataType.Float, torch.float32)):
            if arguments.only not in name:
                continue
            fd = definition(function, dtype)
            x = torch.randn(rows, columns, device=device).to(kind)
            found.append({"function": name, "dtype": str(kind)[6:], **measured(functools.partial(fd.execute, [x]), (x,), device)})
            print(json.dumps(found[-1]), flush=True)
    write(arguments, __file__, device, found, rows_of_tensor=rows, columns=columns)


if __name__ == "__main__":
    main()
