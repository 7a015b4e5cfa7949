"""Scalar expressions in CUDA text: what the host can compute becomes a kernel parameter, the rest is printed.

Owns the table of scalar parameters of a kernel. Read first: `ScalarPrinter.text`.
"""

from __future__ import annotations

import math

from ..dtypes import CUDA_NAMES, DataType
from ..errors import InternalError
from ..expr import Number, Sym, lower_bound, op, variables
from ..lower.kernel_ir import is_host_variable
from ..lower.program import ScalarParam
from ..ops.divisors import divisor

_THREAD_VARS = ("threadIdx.", "blockIdx.")
_BLOCK_VAR = "blockIdx."
_INFIX = {"add": "+", "mul": "*", "floordiv": "/", "mod": "%", "lt": "<", "eq": "==", "and": "&&", "bitwise_xor": "^"}


def literal(value: Number, dtype: DataType) -> str:
    """Return a constant of `dtype` as C++ text that is valid for NVRTC and the host compiler without headers."""
    if dtype.is_bool:
        return "true" if value else "false"
    if dtype.is_complex:
        part = DataType.Float if dtype is DataType.ComplexFloat else DataType.Double
        pair = complex(value)
        return f"{CUDA_NAMES[dtype]}{{{literal(pair.real, part)}, {literal(pair.imag, part)}}}"
    if isinstance(value, complex):
        raise InternalError(f"the complex number {value} as a constant of type {dtype}")
    if dtype.is_integer:
        whole = int(value)
        if dtype is DataType.UInt64:
            return f"{whole}ULL"
        if dtype.bits < 32:
            return f"({CUDA_NAMES[dtype]}){whole}"
        if whole == -(1 << 63):
            return "(-9223372036854775807LL - 1LL)"
        return f"{whole}LL" if dtype is not DataType.Int32 else str(whole)
    number = float(value)
    suffix = "f" if dtype is not DataType.Double else ""
    wide = CUDA_NAMES[DataType.Double if dtype is DataType.Double else DataType.Float]
    if math.isnan(number):
        text = f"weft::quiet_nan<{wide}>()"
    elif math.isinf(number):  # not a quotient: the compiler divides by 0 in each thread
        text = f"(-weft::infinity<{wide}>())" if number < 0 else f"weft::infinity<{wide}>()"
    else:
        text = f"{number!r}{suffix}" if "e" in repr(number) or "." in repr(number) else f"{number!r}.0{suffix}"
        text = f"({text})" if number < 0 else text
    if dtype in (DataType.Float, DataType.Double):
        return text
    return converted(dtype, text)


def converted(dtype: DataType, text: str) -> str:
    """Return the conversion of a C++ value to `dtype`."""
    return f"weft::{'convert_narrow' if dtype.is_narrow_float else 'convert'}<{CUDA_NAMES[dtype]}>({text})"


class ScalarPrinter:
    """Prints expressions of one kernel and collects its scalar parameters.

    index_type: Int or Int32, the type that indices are computed in. block_values: quotients and remainders of block indices by sizes, as (name, text), in the
    order in which the kernel computes them once, at its start: inside conditions, the compiler would divide again at every use. divides: whether an index is
    divided by a host-known size, with the block `divide` of the device library.
    """

    def __init__(self, index_type: DataType) -> None:
        self.index_ctype = "int" if index_type is DataType.Int32 else "long long"
        self.params: dict[tuple[Sym, str], ScalarParam] = {}
        self.block_values: dict[Sym, tuple[str, str]] = {}
        self.divides = False

    def index(self, sym: Sym) -> str:
        """Return an index expression, in a form that may follow a plus sign."""
        return self._print(sym, top=sym.op != "bitwise_xor")

    def condition(self, sym: Sym) -> str:
        return self._print(sym, top=True)

    def value(self, sym: Sym, dtype: DataType) -> str:
        """Return a scalar operand converted to `dtype`: a literal or a parameter of that type."""
        if sym.is_const:
            return literal(_convert(sym.value, dtype), dtype)
        if not is_host(sym):
            text = self._print(sym, top=True)
            return converted(dtype, text)
        if dtype.is_reduced_float:
            return converted(dtype, self._param(sym, "float"))
        if dtype.is_complex:
            part = DataType.Float if dtype is DataType.ComplexFloat else DataType.Double
            real, imag = (self.value(op(name, (sym,), DataType.Double), part) for name in ("real", "imag"))
            return f"{CUDA_NAMES[dtype]}{{{real}, {imag}}}"
        return self._param(sym, CUDA_NAMES.get(dtype, "long long"))

    def _param(self, sym: Sym, ctype: str) -> str:
        key = (sym, ctype)
        if key not in self.params:
            self.params[key] = ScalarParam(f"p{len(self.params)}", sym, ctype)
        return self.params[key].name

    def _print(self, sym: Sym, top: bool = False) -> str:
        if sym.is_const:
            return ("true" if sym.value else "false") if sym.dtype.is_bool else str(sym.value)
        if is_host(sym):
            return self._param(sym, self.index_ctype if not sym.dtype.is_bool else "bool")
        if sym.is_var:
            name = str(sym.payload)
            return f"({self.index_ctype}){name}" if name.startswith(_THREAD_VARS) else name
        if sym.op in ("min", "max"):
            a, b = map(self._print, sym.args)
            return f"({a} {'<' if sym.op == 'min' else '>'} {b} ? {a} : {b})"
        if sym.op == "ceildiv":
            a, b = map(self._print, sym.args)
            return f"(({a} + {b} - 1) / {b})"
        if sym.op not in _INFIX:
            raise InternalError(f"scalar operation {sym.op} has no CUDA text")
        if sym.op in ("floordiv", "mod") and not sym.args[1].is_const and _is_of_block(sym):
            return self._block_value(sym)
        if sym.op in ("floordiv", "mod") and self._is_by_size(sym):
            return self._divided(sym)
        if self.index_ctype == "int" and sym.op in ("floordiv", "mod") and sym.args[1].is_const and _is_natural_of_blocks(sym.args[0]):
            text = f"(int)((unsigned){self._print(sym.args[0])} {_INFIX[sym.op]} {sym.args[1].value}u)"  # half the instructions of a division with a sign
            return text if top else f"({text})"
        text = f" {_INFIX[sym.op]} ".join(map(self._print, _host_first(sym)))
        return text if top else f"({text})"

    def _block_value(self, sym: Sym) -> str:
        if sym not in self.block_values:
            text = self._divided(sym) if self._is_by_size(sym) else f" {_INFIX[sym.op]} ".join(map(self._print, sym.args))
            self.block_values[sym] = (f"b{len(self.block_values)}", text)
        return self.block_values[sym][0]

    def _is_by_size(self, sym: Sym) -> bool:
        """True for the quotient or remainder of a nonnegative index by a host-known value."""
        index, size = sym.args
        others = [v for v in variables(index) if not is_host_variable(v)]
        is_index = lower_bound(index) >= 0 and all(v.extent is not None or str(v.payload).startswith(_THREAD_VARS) for v in others)
        return self.index_ctype == "int" and is_host(size) and is_index

    def _divided(self, sym: Sym) -> str:
        index, size = sym.args
        self.divides = True
        word = self._param(divisor(size), "unsigned long long")
        number = self._print(index, top=True)
        return f"weft::quotient({number}, {word})" if sym.op == "floordiv" else f"weft::remainder({number}, {self._print(size)}, {word})"


def _is_natural_of_blocks(sym: Sym) -> bool:
    """True for an index of a block that is not negative. The compiler knows that of threads and loops, but not of products with blocks, which may overflow."""
    return lower_bound(sym) >= 0 and any(str(v.payload).startswith(_BLOCK_VAR) for v in variables(sym))


def _is_of_block(sym: Sym) -> bool:
    """True if `sym` depends only on block indices and host-known values."""
    return all(is_host_variable(v) or str(v.payload).startswith(_BLOCK_VAR) for v in variables(sym))


def _host_first(sym: Sym) -> list[Sym]:
    """The arguments of a sum or product, with host-known ones combined into one parameter."""
    if sym.op not in ("add", "mul"):
        return list(sym.args)
    from ..expr import ONE, ZERO, add, mul

    combine, start = (add, ZERO) if sym.op == "add" else (mul, ONE)
    host, rest = start, []
    for arg in sym.args:
        if is_host(arg) or arg.is_const:
            host = combine(host, arg)
        else:
            rest.append(arg)
    return rest if host is start else [*rest, host]


def is_host(sym: Sym) -> bool:
    """True if `sym` is not a constant and depends only on values that the host knows at launch."""
    if sym.is_const:
        return False
    return all(map(is_host_variable, variables(sym)))


def _convert(value: Number, dtype: DataType) -> Number:
    if dtype.is_integer and isinstance(value, float):
        return int(value)
    return value
