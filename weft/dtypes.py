"""Data types, their sizes in bits and their names in CUDA.

Owns what a type is; promotion rules are in `weft.ops.promotion`, torch's types in `weft.reference.torch_types`.
"""

from __future__ import annotations

from enum import Enum


class DataType(Enum):
    """Element types with nvFuser's names. `bits` is the storage size of one element."""

    Double = "double"
    Float = "float"
    Half = "__half"
    Int = "int64_t"
    Int32 = "int"
    UInt64 = "uint64_t"
    Index = "nvfuser_index_t"
    Bool = "bool"
    BFloat16 = "__bfloat"
    Float8_e4m3fn = "__e4m3"
    Float8_e5m2 = "__e5m2"
    Float8_e8m0fnu = "__e8m0"
    Float4_e2m1fn = "__e2m1"
    Float4_e2m1fn_x2 = "__e2m1_x2"
    ComplexFloat = "std::complex<float>"
    ComplexDouble = "std::complex<double>"
    Null = "null_type"

    __hash__ = object.__hash__  # Enum's own hashes the name in Python; every scalar expression is looked up by its type

    def __repr__(self) -> str:
        return f"DataType.{self.name}"

    __str__ = __repr__

    @property
    def bits(self) -> int:
        """Storage bits of one element (8 for Bool; Index counts as 64)."""
        return _BITS[self]

    @property
    def is_float(self) -> bool:
        return self in FLOATING

    @property
    def is_reduced_float(self) -> bool:
        """True for floats of 16 bits and fewer, which arithmetic promotes to Float."""
        return self in FLOATING and self.bits <= 16

    @property
    def is_integer(self) -> bool:
        """True for the integers (Bool is none)."""
        return self in INTEGERS

    @property
    def is_bool(self) -> bool:
        return self is DataType.Bool

    @property
    def is_complex(self) -> bool:
        return self in (DataType.ComplexFloat, DataType.ComplexDouble)


_D = DataType
_BITS = {
    _D.Double: 64, _D.Float: 32, _D.Half: 16, _D.BFloat16: 16, _D.Int: 64, _D.Int32: 32, _D.UInt64: 64, _D.Index: 64, _D.Bool: 8,
    _D.Float8_e4m3fn: 8, _D.Float8_e5m2: 8, _D.Float8_e8m0fnu: 8, _D.Float4_e2m1fn: 4, _D.Float4_e2m1fn_x2: 8,
    _D.ComplexFloat: 64, _D.ComplexDouble: 128, _D.Null: 0,
}  # fmt: skip
FLOATING = frozenset({_D.Double, _D.Float, _D.Half, _D.BFloat16, _D.Float8_e4m3fn, _D.Float8_e5m2, _D.Float8_e8m0fnu, _D.Float4_e2m1fn})
INTEGERS = frozenset({_D.Int, _D.Int32, _D.UInt64, _D.Index})

# What the generated text calls a type (docs/kernel_text.md). Index is replaced by the kernel's index type before printing.
CUDA_NAMES = {
    _D.Double: "double", _D.Float: "float", _D.Half: "weft::f16", _D.BFloat16: "weft::bf16", _D.Int: "long long", _D.Int32: "int",
    _D.UInt64: "unsigned long long", _D.Bool: "bool", _D.ComplexFloat: "weft::complex<float>", _D.ComplexDouble: "weft::complex<double>",
    _D.Float8_e4m3fn: "weft::e4m3", _D.Float8_e5m2: "weft::e5m2", _D.Float8_e8m0fnu: "weft::e8m0",
}  # fmt: skip


_TORCH_NAMES = {
    "float64": _D.Double, "float32": _D.Float, "float16": _D.Half, "bfloat16": _D.BFloat16, "int64": _D.Int, "int32": _D.Int32, "uint64": _D.UInt64,
    "bool": _D.Bool, "complex64": _D.ComplexFloat, "complex128": _D.ComplexDouble, "float8_e4m3fn": _D.Float8_e4m3fn, "float8_e5m2": _D.Float8_e5m2,
    "float8_e8m0fnu": _D.Float8_e8m0fnu, "float4_e2m1fn_x2": _D.Float4_e2m1fn_x2,
}  # fmt: skip


def as_dtype(value: object) -> DataType | None:
    """Return the DataType that a user means: a DataType itself, or torch's dtype of that name; None for anything else. Imports no torch."""
    if isinstance(value, DataType):
        return value
    if type(value).__name__ == "dtype" and type(value).__module__ == "torch":
        return _TORCH_NAMES.get(str(value).partition(".")[2])
    return None
