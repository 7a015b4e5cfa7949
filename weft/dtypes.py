"""Data types: one record per type, from which everything else about the type is derived.

Owns what a type is. Promotion rules are in `weft.ops.promotion`, torch's own types in `weft.reference.torch_types`, conversions on the device in
`device/cast.cuh` and, for floats of 8 bits and fewer, `device/narrow.cuh`. To add a type: a member of `DataType`, a record here, its conversion there
(docs/adding_a_type.md).
Read first: `TypeRecord`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import cast


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
    Byte = "uint8_t"
    Char = "int8_t"
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
    def record(self) -> "TypeRecord":
        """The properties of the type."""
        return RECORDS[self]

    @property
    def is_float(self) -> bool:
        return self in FLOATING

    @property
    def is_reduced_float(self) -> bool:
        """True for floats of 16 bits and fewer, which arithmetic promotes to Float."""
        return self in FLOATING and self.bits <= 16

    @property
    def is_narrow_float(self) -> bool:
        """True for floats of 8 bits and fewer, which have no arithmetic at all."""
        return self in FLOATING and self.bits <= 8

    @property
    def is_packed(self) -> bool:
        """True for types of which several elements share a byte."""
        return 0 < self.bits < 8

    @property
    def elems_per_unit(self) -> int:
        """Elements of the smallest piece of memory that has whole bytes: 2 for 4 bits, 4 for 6 bits, else 1."""
        return RECORDS[self].elems_per_unit

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


@dataclass(frozen=True)
class TypeRecord:
    """One type.

    bits: of one element in memory. kind: "float", "integer", "bool", "complex" or "none".
    cuda: the C++ type of a value in generated text (docs/kernel_text.md); storage: the C++ type of a unit of memory, which pointers point to. torch: the name
    in `torch` of the type of a tensor in memory; empty if there is none. A torch element may contain several elements: `elems_per_unit`. unit_roundoff: of
    floats, half the distance from 1 to the next number. largest: the largest finite value of a narrow float; has_infinity: the code after the largest is
    infinity, and those after it are NaN. The other properties of a narrow float follow from these.
    """

    bits: int
    kind: str
    cuda: str = ""
    torch: str = ""
    unit_roundoff: float = 0.0
    largest: float = 0.0
    storage: str = ""
    has_infinity: bool = False

    @property
    def mantissa_bits(self) -> int:
        """Mantissa bits of a signed float, without the implicit one."""
        return -1 - round(math.log2(self.unit_roundoff))

    @property
    def exponent_bits(self) -> int:
        """Bits of the exponent, of a float with a sign."""
        return self.bits - 1 - self.mantissa_bits

    @property
    def elems_per_unit(self) -> int:
        """Elements of the smallest piece of memory that has whole bytes."""
        elems = 1
        while self.bits * elems % 8:
            elems += 1
        return elems

    @property
    def pointer(self) -> str:
        """C++ type that a pointer to elements points to: of a unit when elements share a byte."""
        return self.storage or self.cuda


_D = DataType
RECORDS: dict[DataType, TypeRecord] = {
    _D.Double: TypeRecord(64, "float", "double", "float64", 2.0**-53),
    _D.Float: TypeRecord(32, "float", "float", "float32", 2.0**-24),
    _D.Half: TypeRecord(16, "float", "weft::f16", "float16", 2.0**-11),
    _D.BFloat16: TypeRecord(16, "float", "weft::bf16", "bfloat16", 2.0**-8),
    _D.Float8_e4m3fn: TypeRecord(8, "float", "weft::e4m3", "float8_e4m3fn", 2.0**-4, 448.0),
    _D.Float8_e5m2: TypeRecord(8, "float", "weft::e5m2", "float8_e5m2", 2.0**-3, 57344.0, has_infinity=True),
    _D.Float8_e8m0fnu: TypeRecord(8, "float", "weft::e8m0", "float8_e8m0fnu", 1.0, 2.0**127),
    _D.Float4_e2m1fn: TypeRecord(4, "float", "weft::e2m1", "float4_e2m1fn_x2", 2.0**-2, 6.0, storage="weft::e2m1_pair"),
    _D.Float4_e2m1fn_x2: TypeRecord(8, "none", "", "float4_e2m1fn_x2"),
    _D.Int: TypeRecord(64, "integer", "long long", "int64"),
    _D.Int32: TypeRecord(32, "integer", "int", "int32"),
    _D.UInt64: TypeRecord(64, "integer", "unsigned long long", "uint64"),
    _D.Index: TypeRecord(64, "integer", "", "int64"),  # replaced by the kernel's index type before printing
    _D.Byte: TypeRecord(8, "integer", "unsigned char", "uint8"),
    _D.Char: TypeRecord(8, "integer", "signed char", "int8"),
    _D.Bool: TypeRecord(8, "bool", "bool", "bool"),
    _D.ComplexFloat: TypeRecord(64, "complex", "weft::complex<float>", "complex64", 2.0**-24),
    _D.ComplexDouble: TypeRecord(128, "complex", "weft::complex<double>", "complex128", 2.0**-53),
    _D.Null: TypeRecord(0, "none"),
}  # fmt: skip

_BITS: dict[DataType, int] = {dtype: record.bits for dtype, record in RECORDS.items()}
FLOATING = frozenset(dtype for dtype, record in RECORDS.items() if record.kind == "float")
INTEGERS = frozenset(dtype for dtype, record in RECORDS.items() if record.kind == "integer")
CUDA_NAMES = {dtype: record.cuda for dtype, record in RECORDS.items() if record.cuda}
TORCH_NAMES = {  # a tensor of torch's float4_e2m1fn_x2 has that type outside of a definition, and Float4_e2m1fn inside
    record.torch: dtype for dtype, record in RECORDS.items() if record.torch and dtype not in (_D.Index, _D.Float4_e2m1fn)
}


def as_dtype(value: object) -> DataType | None:
    """Return the DataType for a DataType or a torch dtype; None for anything else. Does not import torch."""
    if isinstance(value, DataType):
        return value
    if type(value).__name__ == "dtype" and type(value).__module__ == "torch":
        return TORCH_NAMES.get(str(value).partition(".")[2])
    return None


class StateType:
    """The type of a reduction's state of several fields in generated text: a struct. It is used in place of a DataType, only for intermediate tensors. name:
    for dumps; bits: of the struct; cuda: its name in generated text. One object for each name: equality is identity.
    """

    is_float = is_reduced_float = is_narrow_float = is_packed = is_integer = is_bool = is_complex = False
    elems_per_unit = 1

    def __init__(self, name: str, fields: tuple[DataType, ...], cuda: str) -> None:
        largest = max(field.bits for field in fields)
        self.name = self.value = name
        self.fields = fields
        self.bits = -(-sum(field.bits for field in fields) // largest) * largest
        self.record = TypeRecord(self.bits, "state", cuda)

    def __repr__(self) -> str:
        return f"StateType({self.name})"

    __str__ = __repr__


_STATES: dict[str, StateType] = {}


def state_type(name: str, fields: tuple[DataType, ...], cuda: str) -> DataType:
    """Return the type of a state, the same object for the same name. Typed as a DataType, because it is used in place of one."""
    found = _STATES.get(name)
    if found is None:
        found = _STATES.setdefault(name, StateType(name, fields, cuda))
        CUDA_NAMES[cast(DataType, found)] = cuda
    return cast(DataType, found)
