"""Names that users write: nvFuser's ops, the composites beside them, and what to write instead of a name that torch has and weft lacks.

Owns the lookup and the hints. Read first: `function_of`, then `INSTEAD`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UserError
from ..options import nearest
from . import activations as _activations, losses as _losses, positions as _positions, step_gradients as _step_gradients  # noqa: F401  (they add to the tables)
from .block_functions import BLOCK_FUNCTIONS
from .calls import finds_ops
from .index_functions import MORE_FUNCTIONS
from .composites import COMPOSITES
from .functions import FUNCTIONS, reduction_function
from .monoids import MONOIDS, StateMonoid


class UnknownName(UserError, AttributeError):
    code = "W120"
    what = "there is no op {name!r}"
    fix = "{remedy}"


INSTEAD = {
    "bmm": "ops.matmul(a, b)", "mm": "ops.matmul(a, b)",
    "dot": "ops.sum(ops.mul(a, b))", "inner": "ops.sum(ops.mul(a, b), [-1])", "outer": "ops.mul(ops.unsqueeze(a, 1), ops.unsqueeze(b, 0))",
    "addmm": "ops.add(ops.matmul(a, b), c)", "einsum": "ops.matmul, or ops.mul and ops.sum over axes made by ops.unsqueeze", "divide": "ops.div",
    "multiply": "ops.mul", "subtract": "ops.sub", "true_divide": "ops.truediv", "greater": "ops.gt", "greater_equal": "ops.ge", "less": "ops.lt",
    "less_equal": "ops.le", "not_equal": "ops.ne", "equal": "ops.eq", "floor_divide": "ops.floor(ops.truediv(a, b))", "concat": "ops.cat(tensors, dim)",
    "concatenate": "ops.cat(tensors, dim)", "stack": "ops.cat([ops.unsqueeze(t, dim) for t in tensors], dim)", "split": "one ops.slice per part",
    "chunk": "one ops.slice per part", "narrow": "ops.slice(x, starts, ends)", "unbind": "ops.select(x, index, dim) per part",
    "contiguous": "nothing: an output is contiguous; ops.stride_order chooses another layout", "clone": "ops.set(x)",
    "numel": "the product of x.size(i) over all axes", "item": "a scalar input: fd.define_scalar(dtype=...)",
    "numpy": "fd.add_output(x), then work on the tensor that execute returns",
    "backward": "fd.autograd() behind the definition; fd.execute then records gradients", "requires_grad_": "fd.autograd() behind the definition",
    "cuda": "nothing: a definition runs where its inputs are", "cpu": "nothing: a definition runs where its inputs are",
    "device": "nothing: a definition runs where its inputs are", "digamma": "torch.digamma outside the definition",
    "conv1d": "torch.nn.functional.conv1d outside the definition", "conv2d": "torch.nn.functional.conv2d outside the definition",
    "max_pool2d": "torch.nn.functional.max_pool2d outside the definition", "avg_pool2d": "torch.nn.functional.avg_pool2d outside the definition",
    "scaled_dot_product_attention": "ops.sdpfa_fwd(q, k, v)", "attention": "ops.sdpfa_fwd(q, k, v)", "sort": "ops.argsort, then ops.take_along_axis",
    "bernoulli": "ops.lt(ops.rand_like(x), p)", "rand": "ops.uniform(0.0, 1.0, shape)", "randn": "ops.normal(0.0, 1.0, shape)",
    "randint": "ops.floor(ops.uniform(low, high, shape))", "relu_": "ops.relu, and add_output(y, alias_input=x) to write into x",
    "add_": "ops.add, and add_output(y, alias_input=x) to write into x", "mul_": "ops.mul, and add_output(y, alias_input=x) to write into x",
    "copy_": "add_output(y, alias_input=x)", "index_put": "ops.scatter(x, index, values, dim)", "index_add": "ops.scatter_add",
    "nonzero": "torch.nonzero outside the definition: its size depends on values",
    "masked_select": "torch.masked_select outside the definition: its size depends on values",
    "unique": "torch.unique outside the definition: its size depends on values", "median": "ops.topk, or torch.median outside the definition",
    "quantile": "torch.quantile outside the definition", "tril": "ops.where with two ops.iota, or x - ops.triu(x, 1)", "roll": "ops.cat of two slices",
    "flip": "ops.take_along_axis with an index from ops.iota(n, n - 1, -1)", "repeat": "ops.expand, then ops.reshape", "tile": "ops.expand, then ops.reshape",
    "movedim": "ops.permute(x, dims)", "swapaxes": "ops.transpose(x, dim0, dim1)", "astype": "ops.cast(x, dtype)", "type": "ops.cast(x, dtype)",
    "cross": "products of slices, with ops.cat", "bincount": "torch.bincount outside the definition", "histc": "torch.histc outside the definition",
}  # fmt: skip
"""What to write instead of a name that torch has; the texts follow "write "."""


def all_names() -> list[str]:
    """Return every op and composite, sorted."""
    return sorted({*FUNCTIONS, *COMPOSITES, *BLOCK_FUNCTIONS, *MORE_FUNCTIONS})


def unknown(name: str) -> UnknownName:
    """Return the error for a name that is no op."""
    instead = INSTEAD.get(name)
    near = nearest(name, [*FUNCTIONS, *COMPOSITES, *BLOCK_FUNCTIONS, *MORE_FUNCTIONS])
    remedy = f"write {instead}" if instead else f"{near}; dir(fd.ops) lists all of them"
    return UnknownName(name=name, remedy=remedy)


@finds_ops
def function_of(name: str) -> Callable[..., Any]:
    """Return the function of the op or composite `name`, which takes the fusion first. Errors: UnknownName."""
    function = FUNCTIONS.get(name) or COMPOSITES.get(name) or BLOCK_FUNCTIONS.get(name) or MORE_FUNCTIONS.get(name)
    if function is None and name in MONOIDS and not isinstance(MONOIDS[name], StateMonoid):
        function = reduction_function(name)
    if function is None:
        raise unknown(name)
    return function
