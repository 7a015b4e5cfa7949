"""One kernel per op and type in one translation unit, and operands with the special values: what the tests of the pointwise ops share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from weft.device.library import translation_unit
from weft.dtypes import CUDA_NAMES, DataType
from weft.ops import build  # noqa: F401  (fills the registry)
from weft.ops.registry import OPS, OpDef

COMPUTE_TYPES = (DataType.Float, DataType.Double, DataType.Int, DataType.Int32, DataType.UInt64, DataType.Bool, DataType.ComplexFloat, DataType.ComplexDouble)
THREADS = 128


@dataclass(frozen=True)
class Case:
    op: OpDef
    compute: DataType

    @property
    def entry(self) -> str:
        return f"k_{self.op.name}_{self.compute.name}"

    @property
    def out(self) -> DataType:
        return self.op.result.dtype(self.compute)

    def operand_type(self, position: int) -> DataType:
        return self.op.fixed.get(position, self.compute)

    def kernel(self) -> str:
        names = "abc"[: self.op.arity]
        types = [CUDA_NAMES[self.operand_type(i)] for i in range(self.op.arity)]
        parameters = ", ".join(f"const {t}* {n}" for t, n in zip(types, names))
        text = self.op.cuda([f"{n}[i]" for n in names], self.compute, self.out)
        return (
            f'extern "C" __global__ void {self.entry}({parameters}, {CUDA_NAMES[self.out]}* out, int count) {{\n'
            f"  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) out[i] = {text};\n}}\n"
        )

    def register_kernel(self) -> str:
        """The same over register arrays, as generated kernels have them: in the checked emulator their elements are proxies."""
        names = "abc"[: self.op.arity]
        types = [CUDA_NAMES[self.operand_type(i)] for i in range(self.op.arity)]
        parameters = ", ".join(f"const {t}* {n}" for t, n in zip(types, names))
        loads = " ".join(f"weft::Array<{t}, 2> r{n}; r{n}[1] = {n}[i];" for t, n in zip(types, names))
        text = self.op.cuda([f"r{n}[1]" for n in names], self.compute, self.out)
        out = CUDA_NAMES[self.out]
        return (
            f'extern "C" __global__ void r{self.entry}({parameters}, {out}* out, int count) {{\n  const int i = threadIdx.x;\n'
            f"  {loads} weft::Array<{out}, 2> result;\n  result[0] = {text};\n  out[i] = result[0];\n}}\n"
        )


def cases(compute: DataType) -> Iterator[Case]:
    """All ops that can be computed in this type, but for cast."""
    return (Case(op, compute) for op in OPS.values() if op.name != "cast" and op.supports(compute))


def unit(compute: DataType) -> str:
    """The translation unit with the kernels of all ops of one type."""
    every = list(cases(compute))
    blocks = {b for case in every for b in case.op.blocks_for(compute)}
    return translation_unit("\n".join(case.kernel() for case in every), blocks)


def register_unit(compute: DataType) -> str:
    """The translation unit of the kernels over register arrays."""
    every = list(cases(compute))
    blocks = {b for case in every for b in case.op.blocks_for(compute)}
    return translation_unit("\n".join(case.register_kernel() for case in every), blocks)


_OF_MAGNITUDES = {"e2m1_scale"}  # no result is promised for less than 0
_FLOATS = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 0.3, -0.7, 0.54, 0.56, 1.5, -1.5, 2.5, -2.5, 2.0, -2.0, 3.0, 7.3, -11.2, 20.5, -20.5, 88.0, -87.0, 1e-8, -1e-8,
    1e-3, 1e4, -1e4, 1e20, -1e20, math.inf, -math.inf, math.nan,
]  # fmt: skip
_INTS = [0, 1, -1, 2, -2, 3, -3, 5, 7, -8, 12, 31, 32, 63, 64, -64, 1000, -12345]


def _values(dtype: DataType, count_of_operands: int) -> torch.Tensor:
    if dtype.is_bool:
        return torch.tensor([False, True])
    if dtype.is_complex:
        parts = [0.5, -1.25, 2.0, -0.1, 3.3]
        return torch.tensor([complex(a, b) for a in parts for b in parts], dtype=torch.complex128)
    if dtype.is_integer:
        limits = torch.iinfo(torch.int32 if dtype is DataType.Int32 else torch.int64)
        return torch.tensor(_INTS + [limits.min, limits.max] if count_of_operands < 3 else _INTS[:8], dtype=torch.int64)
    floats = torch.tensor(_FLOATS if count_of_operands < 3 else _FLOATS[:14], dtype=torch.float64)
    if count_of_operands == 1:
        generator = torch.Generator().manual_seed(1)
        floats = torch.cat(
            [floats, torch.randn(2000, generator=generator, dtype=torch.float64) * 3, torch.rand(500, generator=generator, dtype=torch.float64) * 2 - 1]
        )
    return floats


OF_MAGNITUDES = {"e2m1_scale"}  # ops whose operand is the largest magnitude of a block: negative values have no meaning

OF_POSITIONS = {"checked_position"}  # ops that the emulator refuses positions out of range


def operands(case: Case) -> list[torch.Tensor]:
    """Return operands that hold all combinations of the special values, in the storage types of the kernel."""
    if case.op.name in _OF_MAGNITUDES:
        return [_values(case.compute, 1).abs().to(STORAGE[case.compute])]
    columns = [_values(case.operand_type(i), case.op.arity) for i in range(case.op.arity)]
    if case.op.name in OF_MAGNITUDES:
        columns = [column.abs() for column in columns]
    grid = torch.meshgrid(*(torch.arange(len(c)) for c in columns), indexing="ij")
    found = [column[index.reshape(-1)].to(STORAGE[case.operand_type(i)]) for i, (column, index) in enumerate(zip(columns, grid))]
    if case.op.name in OF_POSITIONS:
        is_inside = (found[0] >= 0) & (found[0] < found[1])
        found = [values[is_inside] for values in found]
    return found


STORAGE = {
    DataType.Float: torch.float32, DataType.Double: torch.float64, DataType.Int: torch.int64, DataType.Int32: torch.int32, DataType.Bool: torch.bool,
    DataType.ComplexFloat: torch.complex64, DataType.ComplexDouble: torch.complex128,
}  # fmt: skip


def all_cases() -> list[Case]:
    return list(itertools.chain.from_iterable(cases(t) for t in COMPUTE_TYPES))
