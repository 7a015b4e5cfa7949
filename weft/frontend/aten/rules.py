"""The table of rules: aten overload -> how a definition computes it. Read first: `rule`, `Translation`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from torch._prims_common import elementwise_dtypes

from ...dtypes import DataType
from ...ir.values import Scalar, TensorView
from ...ops import names as _names  # noqa: F401  (calls find ops by its table)
from ...ops.build import cast
from ...ops.calls import Calls
from ...reference.torch_types import torch_dtype_to_nvfuser_dtype

if TYPE_CHECKING:  # a process that finds its graphs in a cache needs no definition, nor the compiler that comes with one
    from ...api.definition import FusionDefinition

Operand = Any
"""The type of a rule's arguments: a TensorView, a Scalar, a number, a torch dtype, or lists of these."""


class Declined(Exception):
    """Raised by a rule that does not translate a node, with the reason; the node then stays with torch."""


@dataclass(frozen=True)
class Rule:
    """make(t, *args, **kwargs): the definition's value, or a tuple of them. is_cheap: a view or a factory, which costs nothing and is copied into every region
    that reads it. claims(node): why a node is not translated, or "". makes_complex: its result may be complex. takes_narrow: its tensors may be of
    NARROW_DTYPES."""

    make: Callable[..., Any]
    is_cheap: bool
    claims: Callable[[torch.fx.Node], str]
    makes_complex: bool = False
    takes_narrow: bool = False

    @property
    def dtypes(self) -> frozenset[torch.dtype]:
        """The types that the tensors of a node may have."""
        return SUPPORTED_DTYPES | (COMPLEX_DTYPES if self.makes_complex else set()) | (NARROW_DTYPES if self.takes_narrow else set())


RULES: dict[Any, Rule] = {}


def rule(
    *targets: Any, cheap: bool = False, claims: Callable[[torch.fx.Node], str] = lambda node: "", makes_complex: bool = False, takes_narrow: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # fmt: skip
    """Register a function as the rule of aten overloads. A string: the name of an op that torch defines on first use."""

    def register(make: Callable[..., Any]) -> Callable[..., Any]:
        for target in targets:
            RULES[target] = Rule(make, cheap, claims, makes_complex, takes_narrow)
        return make

    return register


SUPPORTED_DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool})
COMPLEX_DTYPES = frozenset({torch.complex64, torch.complex128})
"""Complex types. Regions have the parts of such tensors (`complex_parts`); only casts name the types."""
NARROW_DTYPES = frozenset({torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu})
"""Types that torch converts, copies and multiplies as matrices, and computes nothing else with."""


class Translation:
    """One region on its way into a definition. node: the node whose rule runs. fd: the definition. sizes: a size of torch (an expression of symbols) -> its
    scalar: the size of an input's axis, or a number among the inputs. is_reordered: the axes of an input, or of a permuted view, are in another order in
    memory. merged: (a tensor, the first of some axes, how many) -> the tensor with these axes as one."""

    def __init__(self, fd: FusionDefinition) -> None:
        self.fd, self.ops = fd, fd.ops
        self.sizes: dict[Any, Any] = {}
        self.is_reordered = False
        self.merged: dict[tuple[TensorView, int, int], Operand] = {}
        self.node: torch.fx.Node = None  # type: ignore[assignment]

    @property
    def calls(self) -> Calls:
        """The ops for formulas of `weft.ops`."""
        assert self.fd.fusion is not None
        return Calls(self.fd.fusion)

    # -- types
    def dtype(self, dtype: torch.dtype) -> DataType:
        return torch_dtype_to_nvfuser_dtype(dtype)

    @property
    def result_dtype(self) -> torch.dtype:
        """The type of the node's (first) result."""
        value = self.node.meta["val"]
        return (value[0] if isinstance(value, (tuple, list)) else value).dtype

    def compute_dtype(self, kind: Kind, *args: Any) -> torch.dtype:
        """The type that eager torch computes in: of the node's arguments when none are given."""
        metas = [meta_of(a) for a in (args or self.node.args)]
        return elementwise_dtypes(*[m for m in metas if m is not None], type_promotion_kind=kind)[0]

    def to(self, value: Operand, dtype: torch.dtype) -> Operand:
        """Return a tensor in `dtype`, itself if it has that type; numbers are returned unchanged, because ops convert them."""
        wanted = self.dtype(dtype)
        return self.ops.cast(value, dtype=wanted) if isinstance(value, TensorView) and value.dtype() is not wanted else value

    def wide(self, value: Operand) -> Operand:
        """Return a float tensor in the type of the computation: 16-bit floats in float32."""
        narrow = isinstance(value, TensorView) and value.dtype() in (DataType.BFloat16, DataType.Half)
        return self.to(value, torch.float32) if narrow else value

    def constant(self, value: Any, dtype: torch.dtype) -> Scalar:
        """Return a number, or an expression of symbolic sizes, as a scalar of a type."""
        if isinstance(value, Scalar):
            made = cast(self.fd.fusion, value, self.dtype(dtype))  # type: ignore[arg-type]
            assert isinstance(made, Scalar)
            return made
        return self.fd.define_scalar(value, dtype=self.dtype(dtype))

    def zero(self, like: TensorView) -> Scalar:
        """Return 0 in the type of a float tensor."""
        return self.fd.define_scalar(0.0, dtype=like.dtype())

    # -- shapes
    def rank(self, value: Operand) -> int:
        """Return the number of axes; a number has none."""
        return value.ndim if isinstance(value, TensorView) else 0

    def dims(self, value: TensorView, dims: Any) -> list[int]:
        """Return dims counted from the front; all of them for None or an empty list."""
        rank = value.ndim
        if dims is None or dims == []:
            return list(range(rank))
        given = [dims] if isinstance(dims, int) else list(dims)
        return sorted(d % max(rank, 1) for d in given)

    def extents(self, sizes: Any) -> list[Any]:
        """Return sizes of torch's as numbers and scalars."""
        return [self.extent(s) for s in sizes]

    def extent(self, size: Any) -> Any:
        """Return a size of torch's as a number, or as a scalar made of the sizes of inputs. Errors: Declined if no input has it."""
        if not isinstance(size, torch.SymInt):
            return size
        return self._of(size.node.expr)

    def _of(self, size: Any) -> Any:
        """The number or scalar of a sympy expression."""
        if size.is_Integer:
            return int(size)
        found = self.sizes.get(size)
        if found is None and (size.is_Add or size.is_Symbol):
            found = self._of_a_known_sum(size)
        if found is not None:
            return found
        if size.is_Add or size.is_Mul:
            combine = self.ops.add if size.is_Add else self.ops.mul
            total, *rest = sorted((self._of(a) for a in size.args), key=lambda term: isinstance(term, int))
            for term in rest:
                total = combine(total, term)
        elif size.is_Pow and size.exp.is_Integer and size.exp > 0:
            total = base = self._of(size.base)
            for _ in range(int(size.exp) - 1):
                total = self.ops.mul(total, base)
        elif type(size).__name__ in ("FloorDiv", "CleanDiv"):
            total = self.ops.div(*(self._of(a) for a in size.args))  # sizes are not negative
        else:
            raise Declined(f"the size {size}, which is not the size of an input")
        self.sizes[size] = total
        return total

    def _of_a_known_sum(self, size: Any) -> Any | None:
        """Return a multiple of the size of an input, and a number, such as 2 * (n // 2) + 2 of n // 2 + 1, where no input has n, or n of n + 1; None if it is
        none."""
        own = size.as_coefficients_dict()
        for known, value in list(self.sizes.items()):
            terms = {term: n for term, n in known.as_coefficients_dict().items() if not term.is_Integer} if known.is_Add else {}
            factors = {own[term] / n for term, n in terms.items()}
            if len(factors) == 1 and (factor := factors.pop()).is_Integer and factor > 0:
                rest = size - factor * known
                if rest.is_Integer:
                    return self.ops.add(self.ops.mul(value, int(factor)), int(rest)) if rest else self.ops.mul(value, int(factor))
        return None

    def with_elements(self, value: TensorView, dim: int) -> TensorView:
        """Return a tensor whose expanded axis is a real one: a `where` that always selects the value."""
        everywhere = self.ops.full([value.size(dim)], True, dtype=self.dtype(torch.bool))
        everywhere = self.ops.broadcast(everywhere, is_broadcast_dim=[d != dim for d in range(value.ndim)])
        return self.ops.where(everywhere, value, self.fd.define_scalar(0, dtype=value.dtype()))

    def count(self, value: TensorView, dims: list[int]) -> Operand:
        """Return the number of elements over `dims`, as a number if it is static."""
        total: Any = 1
        shape = value.shape()
        for dim in dims:
            extent = shape[dim]
            static = extent.sym.value if extent.sym.is_const else None
            total = total * static if static is not None and isinstance(total, int) else self.ops.mul(extent, total)
        return total


def meta_of(arg: Any) -> Any:
    """Return the fake value of a node argument, a number unchanged, None for others."""
    if isinstance(arg, torch.fx.Node):
        return arg.meta.get("val")
    return arg if isinstance(arg, (bool, int, float, complex)) else None


def hint(size: Any) -> int:
    """Return a size as a number; the traced value of a symbol. Errors: Declined for a size that depends on data."""
    if isinstance(size, int):
        return size
    if not size.node.has_hint():
        raise Declined(f"the size {size}, which depends on data")
    return int(size.node.hint)


def tensor_dtypes(node: torch.fx.Node) -> set[torch.dtype]:
    """The types of a node's tensor arguments and results."""
    found: set[torch.dtype] = set()
    for at in (node, *node.all_input_nodes):
        value = at.meta.get("val")
        if isinstance(value, torch.Tensor):
            found.add(value.dtype)
        elif isinstance(value, (tuple, list)):
            found.update([v.dtype for v in value if isinstance(v, torch.Tensor)])
    return found


__all__ = [
    "COMPLEX_DTYPES", "NARROW_DTYPES", "RULES", "SUPPORTED_DTYPES", "Declined", "Kind", "Rule", "Translation", "hint", "meta_of", "rule", "tensor_dtypes",
]  # fmt: skip
