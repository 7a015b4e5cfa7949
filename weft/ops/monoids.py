"""The monoids that reductions fold with: each in one place, with all that definitions, kernels, the reference and the model of times ask of it.

A monoid of one field folds values of a type: sum, prod, max, min here, others by `define_monoid`. One of several fields folds a state (`StateType`), which is
lifted from one or more operands and whose fields are read at the end: the monoids of `states.py`. Read first: `Monoid`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..dtypes import CUDA_NAMES, DataType, state_type
from ..errors import InternalError, UserError
from ..expr import Number
from .promotion import Rule
from .registry import FIELD_OPS, OPS, OpDef, torch

_D = DataType
_SUFFIX = {_D.Int: "ll", _D.Index: "ll", _D.Int32: "", _D.UInt64: "ull"}
_BYTES = (_D.Byte, _D.Char)
_LARGEST_INT = {
    _D.Byte: "(unsigned char)255", _D.Char: "(signed char)127", _D.Int: "0x7fffffffffffffffll",
    _D.Index: "0x7fffffffffffffffll", _D.Int32: "0x7fffffff", _D.UInt64: "0xffffffffffffffffull",
}  # fmt: skip
_SMALLEST_INT = {
    _D.Byte: "(unsigned char)0", _D.Char: "(signed char)-128", _D.Int: "(-0x7fffffffffffffffll - 1)",
    _D.Index: "(-0x7fffffffffffffffll - 1)", _D.Int32: "(-0x7fffffff - 1)", _D.UInt64: "0ull",
}  # fmt: skip


class MonoidNotWhole(UserError):
    code = "W334"
    what = "monoid {kind}: {problem}"
    fix = "{remedy}"


@dataclass(frozen=True)
class Monoid:
    """An associative operation with an identity, commutative unless `is_ordered`. Source of the words: Bird, Introduction to Functional Programming.

    op: the pointwise op that combines. identity_text: the identity in C++, by type; identity_value: as a Python number. reduce: (torch
    tensor, dims, keepdim) -> torch tensor, the reference. needs_elements: folding nothing is an error, as torch's max and min.
    is_idempotent: combining a value with itself changes nothing. repeat: (o, x, n) -> x combined n times, in ops of `o` (`weft.ops.calls.Calls`), for
    axes along which an operand repeats; every monoid is idempotent or has it.
    functor: its struct in the device library; "" makes one from `op`, which the kernel's text begins with.
    has_rounding: partial results round, so that the error grows with the number of elements. instructions, mufu: cost per element.
    exchange_factor: cost of combining partial results of threads, a sum's being 1. lane_folds: folds over lanes that this takes, one behind the other.
    is_ordered: it is not commutative. Only scans fold with it: they combine each part with the one right after it, also among blocks that share a row.
    """

    kind: str
    op: str
    identity_text: Callable[[DataType], str]
    reduce: Callable[..., Any]
    identity_value: Callable[[DataType], Number]
    is_idempotent: bool
    repeat: Callable[[Any, Any, Any], Any] | None = None
    functor: str = ""
    has_rounding: bool = False
    needs_elements: bool = False
    instructions: int = 1
    mufu: int = 0
    exchange_factor: int = 1
    lane_folds: int = 1
    is_ordered: bool = False

    def __post_init__(self) -> None:
        if self.is_idempotent == (self.repeat is not None):
            problem = "it is idempotent and also has `repeat`" if self.is_idempotent else "it does not say what n equal values combine to"
            raise MonoidNotWhole(kind=self.kind, problem=problem, remedy="set is_idempotent, or pass repeat=lambda o, x, n: ...")

    def identity(self, dtype: DataType) -> str:
        """Return the identity in C++."""
        return self.identity_text(dtype)

    def combine(self, a: str, b: str, dtype: DataType) -> str:
        """Return the C++ expression of `a` combined with `b`."""
        return OPS[self.op].cuda([a, b], dtype)

    def functor_for(self, dtype: DataType) -> str:
        """Return the name of the struct whose `combine` folds two values."""
        return self.functor or f"weft::Fold_{self.kind}"

    def text_for(self, dtype: DataType) -> str:
        """Return the C++ that a kernel's text begins with: the struct of a monoid that the device library does not know."""
        if self.functor:
            return ""
        combination = OPS[self.op].cuda(["a", "b"], dtype)
        return f"namespace weft {{\nstruct Fold_{self.kind} {{\n  template <class T> WEFT_DEVICE T combine(T a, T b) {{ return {combination}; }}\n}};\n}}\n"

    def blocks_for(self, dtype: DataType) -> tuple[str, ...]:
        """Return the device library blocks that `identity` and `combine` need."""
        return OPS[self.op].blocks_for(dtype)

    def absorb(self, folded: str, operands: Sequence[Sequence[str]], dtype: DataType) -> str:
        """Return the C++ expression of `folded` combined with more elements, each given by the texts of its operands."""
        for element in operands:
            folded = self.combine(folded, self.lift(element, dtype), dtype)
        return folded

    def lift(self, operands: Sequence[str], dtype: DataType) -> str:
        """Return the C++ expression of what stands for one element: itself."""
        return operands[0]

    @property
    def blocks(self) -> tuple[str, ...]:
        """Device library blocks that `identity` and `combine` need for real types."""
        return OPS[self.op].blocks


@dataclass(frozen=True)
class StateMonoid(Monoid):
    """A monoid whose state has several fields. Its operands are lifted to states, which combine; ops called `KIND.FIELD` read the fields at the end.

    struct: name of the C++ template of the state, over the first operand's type. fields: name -> type, given the first operand's type.
    field_text: C++ of ops that read more than a member; {0} is the state. A name that is no field's reads something of the first operand's type.
    text: C++ in namespace weft: that struct, and a struct `functor` with templates over the operand's type T: `identity<T>()`, `combine<T>(state, state)`,
    `lift<T>(operands)`; combine gives the same bits in either order, unless the monoid is ordered. For scans it may also have `follow<T>(before, after)`, of
    two states of which the second comes right after the first, if that costs less.
    of_one: which operand each field of one lifted element is, where each is one.
    takes_vectors: True when `functor` also has `absorb_vector<N>(state, Array<T, M> elements, int first)`, which costs less than N times one.
    takes_elements: True when it also has `absorb<T>(state, operands)`, which costs less than combining with what is lifted.
    takes_runs: True when it also has `absorb_run<T, N>(state, operands, number)`, for N elements one after the other, each with its number: the last one gives
    what N times `absorb` does, and states between them are not to be read.
    reduce: (list of torch tensors, dims, keepdim) -> list of torch tensors, one per field.
    """

    struct: str = ""
    fields: Mapping[str, Callable[[DataType], DataType]] = field(default_factory=dict)
    text: str = ""
    field_text: Mapping[str, str] = field(default_factory=dict)
    needed_blocks: tuple[str, ...] = ()
    takes_vectors: bool = False
    takes_elements: bool = False
    takes_runs: bool = False
    of_one: tuple[int, ...] = ()

    def state(self, operand: DataType) -> DataType:
        """Return the type of the state, given the first operand's."""
        types = tuple(type_of(operand) for type_of in self.fields.values())
        return state_type(f"{self.kind}<{operand.value}>", types, f"weft::{self.struct}<{CUDA_NAMES[operand]}>")

    def identity(self, dtype: DataType) -> str:
        return f"{self.functor}::identity<{_operand_of(dtype)}>()"

    def combine(self, a: str, b: str, dtype: DataType) -> str:
        return f"{self.functor}::combine<{_operand_of(dtype)}>({a}, {b})"

    def absorb(self, folded: str, operands: Sequence[Sequence[str]], dtype: DataType) -> str:
        if not self.takes_elements:
            return super().absorb(folded, operands, dtype)
        for element in operands:
            folded = f"{self.functor}::absorb<{_operand_of(dtype)}>({folded}, {', '.join(element)})"
        return folded

    def absorb_run(self, folded: str, element: Sequence[str], dtype: DataType, number: str, count: int) -> str:
        """Return the same for one element, of which `number` is the number in a run of `count`."""
        return f"{self.functor}::absorb_run<{_operand_of(dtype)}, {count}>({folded}, {', '.join(element)}, {number})"

    def lift(self, operands: Sequence[str], dtype: DataType) -> str:
        return f"{self.functor}::lift<{_operand_of(dtype)}>({', '.join(operands)})"

    def functor_for(self, dtype: DataType) -> str:
        return self.functor

    def text_for(self, dtype: DataType) -> str:
        return f"namespace weft {{\n{self.text.strip()}\n}}\n"

    def blocks_for(self, dtype: DataType) -> tuple[str, ...]:
        return self.needed_blocks

    @property
    def blocks(self) -> tuple[str, ...]:
        return self.needed_blocks


def _operand_of(state: DataType) -> str:
    """Return the C++ type of the first operand of a state."""
    return CUDA_NAMES[state].partition("<")[2].removesuffix(">")


def _number(value: int) -> Callable[[DataType], str]:
    def identity(dtype: DataType) -> str:
        if dtype is _D.Float:
            return f"{value}.f"
        if dtype is _D.Double:
            return f"{value}."
        if dtype.is_bool:
            return "true" if value else "false"
        if dtype.is_complex:
            return f"{CUDA_NAMES[dtype]}{{{value}, 0}}"
        if dtype in _BYTES:
            return f"({CUDA_NAMES[dtype]}){value}"
        if dtype.is_integer:  # with its type, for callers that deduce it
            return f"{value}{_SUFFIX[dtype]}"
        raise InternalError(f"no reduction folds {dtype}")

    return identity


def _bound(sign: str, integers: dict[DataType, str], of_bool: str) -> Callable[[DataType], str]:
    def identity(dtype: DataType) -> str:
        if dtype in (_D.Float, _D.Double):
            return f"{sign}weft::infinity<{CUDA_NAMES[dtype]}>()"
        if dtype.is_bool:
            return of_bool
        if dtype in integers:
            return integers[dtype]
        raise InternalError(f"no extremum is taken of {dtype}")

    return identity


def _sum(x: Any, dims: list[int], keepdim: bool) -> Any:
    return torch.sum(x, dims, keepdim=keepdim) if x.dtype != torch.bool else torch.any(x, dims, keepdim=keepdim)


def _prod(x: Any, dims: list[int], keepdim: bool) -> Any:
    for dim in sorted(dims, reverse=True):
        x = torch.prod(x, dim, keepdim=keepdim)
    return x


def _number_value(value: int) -> Callable[[DataType], Number]:
    def identity(dtype: DataType) -> Number:
        return bool(value) if dtype.is_bool else value if dtype.is_integer else complex(value) if dtype.is_complex else float(value)

    return identity


def _bound_value(is_largest: bool) -> Callable[[DataType], Number]:
    def identity(dtype: DataType) -> Number:
        if dtype.is_bool:
            return is_largest
        if dtype.is_float:
            return float("inf") if is_largest else float("-inf")
        if dtype in (_D.UInt64, _D.Byte):
            return 2**dtype.bits - 1 if is_largest else 0
        if dtype.is_integer:
            half: int = 2 ** (dtype.bits - 1)
            return half - 1 if is_largest else -half
        raise InternalError(f"no extremum is taken of {dtype}")

    return identity


MONOIDS: dict[str, Monoid] = {}
M = TypeVar("M", bound=Monoid)


def define_monoid(monoid: M) -> M:
    """Let reductions fold with `monoid`, under the name `monoid.kind`."""
    if monoid.kind in MONOIDS:
        raise ValueError(f"monoid {monoid.kind} is defined twice")
    MONOIDS[monoid.kind] = monoid
    if isinstance(monoid, StateMonoid):
        for number, name in enumerate({**monoid.fields, **monoid.field_text}):
            text = monoid.field_text.get(name, f"(({{T}})({{0}})).{name}")
            op = OpDef(f"{monoid.kind}.{name}", 1, Rule.keep, {"any": text}, lambda state, number=number: state[number], blocks=monoid.needed_blocks)
            FIELD_OPS[op.name] = op
    return monoid


define_monoid(
    Monoid(
        "sum", "add", _number(0), _sum, _number_value(0), is_idempotent=False, repeat=lambda o, x, n: o.mul(x, n), functor="weft::Sum", has_rounding=True
    )
)
define_monoid(
    Monoid(
        "prod", "mul", _number(1), _prod, _number_value(1), is_idempotent=False, repeat=lambda o, x, n: o.pow(x, n), functor="weft::Prod", has_rounding=True
    )
)
define_monoid(
    Monoid(
        "max", "maximum", _bound("-", _SMALLEST_INT, "false"), lambda x, dims, keepdim: torch.amax(x, dims, keepdim=keepdim), _bound_value(False),
        is_idempotent=True, functor="weft::Max", needs_elements=True,
    )  # fmt: skip
)
define_monoid(
    Monoid(
        "min", "minimum", _bound("", _LARGEST_INT, "true"), lambda x, dims, keepdim: torch.amin(x, dims, keepdim=keepdim), _bound_value(True),
        is_idempotent=True, functor="weft::Min", needs_elements=True,
    )  # fmt: skip
)
def _or(x: Any, dims: list[int], keepdim: bool) -> Any:
    for dim in sorted(dims, reverse=True):
        x = functools.reduce(torch.bitwise_or, x.unbind(dim), x.sum(dim, dtype=x.dtype).zero_())
        x = x.unsqueeze(dim) if keepdim else x
    return x


define_monoid(Monoid("or", "bitwise_or", _number(0), _or, _number_value(0), is_idempotent=True))
"""Of integers: no op of its own, but what a value packed from neighbours is (`weft.graph.packed_neighbours`)."""
define_monoid(
    Monoid(
        "logsumexp", "logaddexp", _bound("-", {}, "false"), lambda x, dims, keepdim: torch.logsumexp(x, dims, keepdim=keepdim), _bound_value(False),
        is_idempotent=False, repeat=lambda o, x, n: x + o.log(o.cast(n, dtype=_D.Double)), has_rounding=True, instructions=15, mufu=2,
        exchange_factor=4,
    )  # fmt: skip
)
"""Of floats, for scans, which kernels carry on as scaled sums (`running.py`); a reduction of this name is the op `logsumexp`: it folds a maximum and a sum."""
