"""CUDA text of random numbers.

Owns what they print; `writer` is the CudaWriter of the kernel. Read first: `random_text`.
"""

from __future__ import annotations

from typing import Any

from ..dtypes import CUDA_NAMES, DataType
from ..errors import InternalError
from ..expr import add
from ..lower.kernel_ir import Op


def random_state(writer: Any, s: Op) -> str:
    """Return the arguments seed, offset of a random op."""
    if len(s.operands) >= 4:
        seed, offset = (writer.read(o, DataType.UInt64) for o in s.operands[2:4])
        return f"{seed}, {offset}"
    index = s.expr.attributes["index"]
    writer.random_ops.add(index)
    return f"philox_seed, philox_offset / 4 + {index}"


def random_text(writer: Any, s: Op) -> str:
    """Return the call that makes one random number."""
    writer.blocks["philox"] = None
    dtype = s.outputs[0].buffer.dtype
    base = DataType.Double if dtype is DataType.Double else DataType.Float
    a, b = (writer.read(o, base) for o in s.operands[:2])
    name = f"{s.expr.attributes['distribution']}_{'double' if base is DataType.Double else 'float'}"
    element = f"(unsigned long long)({writer.scalars.index(s.element)})"
    text = f"weft::{name}({random_state(writer, s)}, {element}, {a}, {b})"
    return text if dtype is base else f"weft::convert<{CUDA_NAMES[dtype]}>({text})"


def write_random_vector(writer: Any, s: Op, depth: int) -> None:
    """Write the calls that make four random numbers each."""
    writer.blocks["philox"] = None
    target, n = s.outputs[0], s.vector_elems
    if target.buffer.dtype is not DataType.Float or n % 4:
        raise InternalError(f"{s.expr}: a vector of {n} {target.buffer.dtype} numbers")
    a, b = (writer.read(o, DataType.Float) for o in s.operands[:2])
    kind = s.expr.attributes["distribution"]
    if kind == "uniform":
        place, element = writer.scalars.index(target.index), writer.scalars.index(s.element)
        writer.emit(depth, f"weft::uniform_floats<{n}>({target.buffer.name}, {place}, {random_state(writer, s)}, (unsigned long long)({element}), {a}, {b});")
        return
    for part in range(0, n, 4):
        offset = writer.scalars.index(add(target.index, part))
        element = writer.scalars.index(add(s.element, part))
        writer.emit(depth, f"weft::{kind}_float4({target.buffer.name}, {offset}, {random_state(writer, s)}, (unsigned long long)({element}), {a}, {b});")
