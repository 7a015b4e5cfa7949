"""What a wrong definition raises: the kind of error, and nvFuser's words in its text. One line per rule.

Read first: `CASES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from fixture import DEVICE

from weft import DataType, FusionDefinition

CASES: dict[str, tuple[type[Exception], str, Callable[..., Any], Sequence[int], dict[str, Any]]] = {}


def case(name: str, kind: type[Exception], text: str, call: Callable[..., Any], shape: Sequence[int] = (-1, -1), **more: Any) -> None:
    CASES[name] = (kind, text, call, shape, more)


def different_types(fd: FusionDefinition, t: Any) -> None:
    fd.ops.cat([t, fd.define_tensor([-1, -1], dtype=DataType.Half)], 0)


def different_ranks(fd: FusionDefinition, t: Any) -> None:
    fd.ops.cat([t, fd.define_tensor([-1])], 0)


# fmt: off
case("slice start/stride", RuntimeError, "Slice start_indices and strides don't match!", lambda fd, t: fd.ops.slice(t, [0, 0], [1, 1], [1]))
case("slice rank", RuntimeError, "Number of tensor dimensions does not match slice dimensions!", lambda fd, t: fd.ops.slice(t, [0, 0, 0], [1, 1, 1]))
case("slice ends", RuntimeError, "Slice indexing attribute dimensions don't match!", lambda fd, t: fd.ops.slice(t, [0, 0], [1, 1, 1]))
case("slice neg", RuntimeError, "start_indices must be greater than or equal to 0", lambda fd, t: fd.ops.slice(t, [-1, 0], [1, 1]))
case("slice end<start", RuntimeError, "end_indices must be greater than or equal to start_indices", lambda fd, t: fd.ops.slice(t, [3, 0], [1, 1]))
case("slice stride", RuntimeError, "All slice operation strides must be of const size 1", lambda fd, t: fd.ops.slice(t, [0, 0], [1, 1], [1, 2]))
case("reshape two -1", RuntimeError, "A maximum of one value of -1 can be provided to reshape", lambda fd, t: fd.ops.reshape(t, [-1, -1]))
case("reshape count", RuntimeError, "Total element counts across view operation must match", lambda fd, t: fd.ops.reshape(t, [5, 5]), (4, 8))
case("reshape infer", RuntimeError, "Cannot infer the actual size of -1 output domain", lambda fd, t: fd.ops.reshape(t, [-1, 5]), (4, 8))
case("reshape 0d", RuntimeError, "Zero-dim tensors may only be reshaped to tensors with a single element", lambda fd, t: fd.ops.reshape(t, [2]), ())
case("reshape -2", RuntimeError, r"was neither symbolic\(-1\), zero_element\(0\), broadcast\(1\), or static\(>1\)", lambda fd, t: fd.ops.reshape(t, [-2, 2]))
case("squeeze expanded", RuntimeError, "Refusing to squeeze expanded IterDomain", lambda fd, t: fd.ops.squeeze(fd.ops.expand(t, [2, -1]), [0]), (1, 3))
case("squeeze n", RuntimeError, "The dims to squeeze must be <= the number of dims", lambda fd, t: fd.ops.squeeze(t, [0, 1, 2]))
case("squeeze range", RuntimeError, "Squeeze dim is outside of Tensor size!", lambda fd, t: fd.ops.squeeze(t, [5]))
case("squeeze nonb", RuntimeError, r"Can not squeeze", lambda fd, t: fd.ops.squeeze(t, [0]))
case("broadcast", RuntimeError, "Invalid broadcast, number of false entries in is_broadcast_dim expected to be", lambda fd, t: fd.ops.broadcast(t, [False, True]))
case("expand const", RuntimeError, "Invalid expand size", lambda fd, t: fd.ops.expand(t, [5, 8]), (4, 8))
case("bid dup", RuntimeError, "is specified more than once", lambda fd, t: fd.ops.broadcast_in_dim(t, [4, 8, 3], [0, 0]))
case("permute len", RuntimeError, "argument to have the same length as input!", lambda fd, t: fd.ops.permute(t, [0]))
case("permute range", RuntimeError, "New2Old axes are not within the number of dimensions", lambda fd, t: fd.ops.permute(t, [0, 3]))
case("permute dup", RuntimeError, "Duplicate entries in transformation map", lambda fd, t: fd.ops.permute(t, [0, 0]))
case("permute type", TypeError, "", lambda fd, t: fd.ops.permute(t, 0))
case("stride_order bad", RuntimeError, "Stride order is not valid", lambda fd, t: fd.ops.stride_order(t, [0, 0]))
case("pad odd", RuntimeError, "Invalid number of padding widths", lambda fd, t: fd.ops.pad(t, [1, 1, 1]))
case("pad many", RuntimeError, "Number of pad widths must be at most twice the input dimension", lambda fd, t: fd.ops.pad(t, [1]*6))
case("pad value type", RuntimeError, "Tensor arg and pad value must have the same dtype", lambda fd, t: fd.ops.pad(t, [1, 1], 1))
case("cat none", RuntimeError, "No input tensor given", lambda fd, t: fd.ops.cat([], 0))
case("cat dim", RuntimeError, "Invalid dimension to cat", lambda fd, t: fd.ops.cat([t, t], 4))
case("cat types", RuntimeError, "Can't concatenate tensors with different data types", different_types)
case("cat rank", RuntimeError, "Unexpected number of dimensions", different_ranks)
case("cat unpadded", RuntimeError, "Expected all inputs to be padded when manual_padding is True.", lambda fd, t: fd.ops.cat([t, t], 1, True))
case("triu rank", RuntimeError, "input tensor for triu must have 2 or more dims, but got", lambda fd, t: fd.ops.triu(t), (4, ))
case("dim range", RuntimeError, "Tried to access out of boundary index", lambda fd, t: fd.ops.sum(t, [5]))
case("max dtype", RuntimeError, "A dtype other than Null is not currently supported", lambda fd, t: fd.ops.max(t, [0], False, DataType.Double))
case("var neg", RuntimeError, "correction must be non-negative", lambda fd, t: fd.ops.var(t, [0], -1))
case("var_mean half", RuntimeError, "variance_mean is not supported for", lambda fd, t: fd.ops.var_mean(t, [0]), dtype=DataType.Half)
case("sum no axis", RuntimeError, "No reduction axis specified", lambda fd, t: fd.ops.sum(t, []))
case("var no axis", RuntimeError, "No reduction axis specified", lambda fd, t: fd.ops.var(t, []))
case("welford no axis", RuntimeError, "No reduction axis specified", lambda fd, t: fd.ops.welford(t, []))
case("var_mean range", RuntimeError, "Tried to access out of boundary index", lambda fd, t: fd.ops.var_mean(t, [-3]))
case("var_mean type", TypeError, "", lambda fd, t: fd.ops.var_mean(t))
case("var_mean dims type", TypeError, "", lambda fd, t: fd.ops.var_mean(t, "a"))
case("cumsum 2 dims", TypeError, "", lambda fd, t: fd.ops.cumsum(t, [0, 1]))
case("cumsum range", RuntimeError, "", lambda fd, t: fd.ops.cumsum(t, 4))
case("cumsum 0d", RuntimeError, "", lambda fd, t: fd.ops.cumsum(t, 0), ())
case("imag real", RuntimeError, "imag not supported for non-complex tensors", lambda fd, t: fd.ops.imag(t))
case("nextafter half", RuntimeError, "Promoted type must be single or double precision float but found", lambda fd, t: fd.ops.nextafter(t, t), dtype=DataType.Half)
case("gcd float", RuntimeError, "input must have integral type", lambda fd, t: fd.ops.gcd(t, t))
case("right shift float", RuntimeError, "input must have integral type", lambda fd, t: fd.ops.logical_right_shift(t, t))
case("and float", RuntimeError, "Integer or boolean input is required for", lambda fd, t: fd.ops.bitwise_and(t, t))
case("where cond", RuntimeError, "Condition should be of DataType Bool, not", lambda fd, t: fd.ops.where(t, t, t))
case("cast null", RuntimeError, "", lambda fd, t: fd.ops.cast(t, DataType.Null))
case("gather rank", RuntimeError, "Tensor arguments have different dimensions", lambda fd, t: fd.ops.gather(t, fd.define_tensor([-1], dtype=DataType.Int), 0))
case("gather dim", RuntimeError, "so dim argument must satisfy", lambda fd, t: fd.ops.gather(t, fd.define_tensor([-1, -1], dtype=DataType.Int), 5))
case("index_select", RuntimeError, "index_tv must be a 1d or scalar tensor.", lambda fd, t: fd.ops.index_select(t, fd.define_tensor([-1, -1], dtype=DataType.Int), 0))
case("index_select 0d", RuntimeError, "lookup_tv argument for indexSelect cannot be a 0-D tensor", lambda fd, t: fd.ops.index_select(t, fd.define_tensor([-1], dtype=DataType.Int), 0), ())
case("select 0d", RuntimeError, "select can not be applied to 0d tensor.", lambda fd, t: fd.ops.select(t, fd.define_scalar(0), 0), ())
case("scatter 0d", RuntimeError, "scatter can not be applied to 0d tensor.", lambda fd, t: fd.ops.scatter(t, fd.define_tensor([], dtype=DataType.Int), t, 0), ())
case("topk k type", RuntimeError, "TopKOp expects int64_t input for k", lambda fd, t: fd.ops.topk(t, fd.define_scalar(2.0)))
case("embedding in", RuntimeError, "Expected input to be atleast 1D", lambda fd, t: fd.ops.embedding_fwd(fd.define_tensor([], dtype=DataType.Int), t))
case("embedding w", RuntimeError, "Expected weight to be 2D", lambda fd, t: fd.ops.embedding_fwd(fd.define_tensor([-1], dtype=DataType.Int), t), (4, ))
case("matmul 0d", RuntimeError, "Expected inputs to be atleast 1D", lambda fd, t: fd.ops.matmul(t, t), ())
case("matmul types", RuntimeError, "Expected A and B dtypes to have the same dtype, got:", lambda fd, t: fd.ops.matmul(t, fd.define_tensor([-1, -1], dtype=DataType.Half)))
case("matmul one K", RuntimeError, "K should be broadcast in both A and B, or neither.", lambda fd, t: fd.ops.matmul(fd.define_tensor([-1, 1]), t))
case("grouped_mm ranks", RuntimeError, "Unexpected operand ranks", lambda fd, t: fd.ops.grouped_mm(fd.define_tensor([-1]), t, fd.define_tensor([-1], dtype=DataType.Int32)))
case("linear w", RuntimeError, "Input B must be at least 2D", lambda fd, t: fd.ops.linear(t, fd.define_tensor([])))
case("linear types", RuntimeError, "Expected input and weight dtypes to have the same dtype", lambda fd, t: fd.ops.linear(t, fd.define_tensor([-1, -1], dtype=DataType.Half)))
case("linear bias", RuntimeError, "Expected bias to have the same dtype as A and B", lambda fd, t: fd.ops.linear(t, t, fd.define_tensor([-1], dtype=DataType.Half)))
case("iota len", RuntimeError, "length must be integer", lambda fd, t: fd.ops.iota(fd.define_scalar(2.0)))
case("iota start type", RuntimeError, "start dtype does not match", lambda fd, t: fd.ops.iota(fd.define_scalar(4), fd.define_scalar(1.0), fd.define_scalar(1), DataType.Int))
case("iota step 0", RuntimeError, "step value must not equal zero", lambda fd, t: fd.ops.iota(fd.define_scalar(4), fd.define_scalar(1), fd.define_scalar(0), DataType.Int))
case("iota inf", RuntimeError, "length, start, step must be finite numbers", lambda fd, t: fd.ops.iota(fd.define_scalar(4), fd.define_scalar(float("inf")), fd.define_scalar(1.0), DataType.Double))
case("uniform int", RuntimeError, "Random distributions only create floating point types!", lambda fd, t: fd.ops.uniform(0.0, 1.0, [4], dtype=DataType.Int))
case("uniform seed only", RuntimeError, "rng_seed and rng_offset must be provided together!", lambda fd, t: fd.ops.uniform(0.0, 1.0, [4], rng_seed=fd.define_scalar(1)))
case("uniform positional only kw", TypeError, "", lambda fd, t: fd.ops.uniform(0.0, 1.0, [4], DataType.Float))
case("define shape -2", RuntimeError, r"was neither symbolic\(-1\), zero_element\(0\), broadcast\(1\), or static\(>1\)", lambda fd, t: fd.define_tensor([-2]))
case("define contig", RuntimeError, "contiguity", lambda fd, t: fd.define_tensor([-1, 1], contiguity=[True, True]))
case("define str", TypeError, "", lambda fd, t: fd.define_tensor("ab"))
case("define no args", TypeError, "", lambda fd, t: fd.define_tensor())
case("define stride_order range", RuntimeError, "stride_order argument is out of range, expects", lambda fd, t: fd.define_tensor([-1, -1], contiguity=True, stride_order=[0, 5]))
case("define cpu rank", RuntimeError, "CPU non-scalar tensor is not supported!", lambda fd, t: fd.define_tensor([-1], is_cpu=True))
case("shape elem", (RuntimeError), "Unsupported iterable object type for define_vector! Index:", lambda fd, t: fd.ops.reshape(t, [2, "a"]))
case("add_output alias noninput", RuntimeError, "alias source can only be a fusion input", lambda fd, t: fd.add_output(fd.ops.relu(t), fd.ops.relu(t)))
case("add_output scalar", RuntimeError, "Non-TensorView outputs are not supported at this point", lambda fd, t: fd.add_output(fd.define_scalar(1.0)))
case("add no dunder", TypeError, "", lambda fd, t: fd.ops.add(t))
case("relu kw", TypeError, "", lambda fd, t: fd.ops.relu(x=t))
# fmt: on


@pytest.mark.parametrize("name", CASES)
def test_error(name: str) -> None:
    kind, text, call, shape, more = CASES[name]
    with FusionDefinition() as fd:
        tensor = fd.define_tensor(list(shape), contiguity=True, **more)
        with pytest.raises(kind, match=text):
            call(fd, tensor)


def _definition(*tensors: tuple[Sequence[int], Any], op: str = "relu") -> FusionDefinition:
    with FusionDefinition() as fd:
        given = [fd.define_tensor(list(shape), contiguity=contiguity) for shape, contiguity in tensors]
        fd.add_output(getattr(fd.ops, op)(*given))
    return fd


def _quotient(op: str) -> FusionDefinition:
    with FusionDefinition() as fd:
        n, x = fd.define_scalar(DataType.Int), fd.define_tensor([-1])
        fd.add_output(fd.ops.mul(x, getattr(fd.ops, op)(6, n)))
    return fd


def _reshape_to(size: str) -> FusionDefinition:
    """x.reshape([n, 4]), alone (a view) or computed on."""
    with FusionDefinition() as fd:
        x, n = fd.define_tensor([-1, -1], contiguity=True), fd.define_scalar(DataType.Int)
        y = fd.ops.reshape(x, [n, 4])
        fd.add_output(y if size == "view" else fd.ops.neg(y))
    return fd


def _view(build: Callable[[Any, Any, Any], Any]) -> FusionDefinition:
    """What only renames the input, with sizes that a scalar gives."""
    with FusionDefinition() as fd:
        x, n = fd.define_tensor([-1, -1], contiguity=True), fd.define_scalar(DataType.Int)
        fd.add_output(build(fd.ops, x, n))
    return fd


def _padded() -> FusionDefinition:
    with FusionDefinition() as fd:
        x, n = fd.define_tensor([-1]), fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.pad(x, [n, 0]))
    return fd


CALLS: dict[str, tuple[str, FusionDefinition, list[Any]]] = {
    "constant size": ("Tried to bind to a constant value: 4 as 5", _definition(([4], True)), [torch.ones(5)]),
    "two sizes": ("Tried to bind to a value: 3 as 4", _definition(([-1], True), ([-1], True), op="add"), [torch.ones(3), torch.ones(4)]),
    "expanded": ("has expanded extent but input tensor has size", _definition(([-1, 4], [None, True])), [torch.ones(3, 4)]),
    "count": ("Inputs do not match", _definition(([4], True)), []),
    "division": ("Integer division by zero detected", _quotient("div"), [0, torch.ones(3)]),
    "-1 in a view": ("Values of -1 passed to reshape must be constant at definition", _reshape_to("view"), [torch.ones(4, 6), -1]),
    "-1 at run time": ("Values of -1 passed to reshape must be constant at definition", _reshape_to("kernel"), [torch.ones(4, 6), -1]),
    "-1 beside 0 at run time": ("Cannot infer a size", _view(lambda o, x, n: o.neg(o.reshape(x, [n, -1]))), [torch.ones(4, 6), 0]),
    "squeeze of rows in a view": ("Can not squeeze", _view(lambda o, x, n: o.squeeze(o.reshape(x, [n, -1]), [0])), [torch.ones(4, 6), 2]),
    "squeeze of a slice in a view": ("Can not squeeze", _view(lambda o, x, n: o.squeeze(o.slice(x, [0, 0], [n, 6]), [0])), [torch.ones(4, 6), 3]),
    "squeeze of topk": ("Can not squeeze", _view(lambda o, x, n: o.squeeze(o.topk(x, n)[0], [1])), [torch.ones(4, 6), 3]),
    "expand of rows in a view": ("Mismatch in sizes", _view(lambda o, x, n: o.expand(o.reshape(x, [n, -1]), [5, -1])), [torch.ones(4, 6), 2]),
    "expand to less than nothing": ("is negative", _view(lambda o, x, n: o.expand(o.slice(x, [0, 0], [o.add(n, 6), 6]), [n, -1])), [torch.ones(4, 6), -5]),
    "less than nothing": ("Invalid resized domain extent", _padded(), [torch.ones(3), -5]),
    "scalar for a tensor": (r"Expected input 0, T0_g_float\[iS0\{i0\}\], to be an at::Tensor but got scalar 2", _definition(([-1], True)), [2]),
    "type": ("to be bound to a tensor of dtype float, but got a tensor of dtype __half", _definition(([-1], True)), [torch.ones(3).half()]),
    "rank": ("to be bound to a tensor of rank", _definition(([-1], True)), [torch.ones(3, 3)]),
    "modulus": ("Modulo zero detected", _quotient("mod"), [0, torch.ones(3)]),
}


@pytest.mark.parametrize("name", CALLS)
def test_error_of_a_call(name: str) -> None:
    text, fd, inputs = CALLS[name]
    with pytest.raises(RuntimeError, match=text):
        fd.execute([i.to(DEVICE) if isinstance(i, torch.Tensor) else i for i in inputs])


X, INDEX = torch.ones(4, 6), torch.zeros(4, 8, dtype=torch.int64)
TOO_LARGE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a gather": lambda o, x, i: o.gather(x, i, 0), "a gather of a result": lambda o, x, i: o.gather(o.exp(x), i, 0),
    "a gather that is reshaped": lambda o, x, i: o.reshape(o.gather(x, i, 0), [-1]), "a scatter": lambda o, x, i: o.scatter(x, i, 3.0, 0),
    "a scatter of a result": lambda o, x, i: o.scatter(o.broadcast_in_dim(o.iota(8), [4, 8], [1]), i, o.cast(o.exp(x), DataType.Int), 0),
    "a scatter along rows": lambda o, x, i: o.scatter(o.broadcast_in_dim(o.iota(8), [4, 8], [1]), i, o.cast(x, DataType.Int), 1),
    "a scatter of an input": lambda o, x, i: o.scatter(o.broadcast_in_dim(o.exp(o.cast(i, DataType.Float)), [4, 8], [0, 1]), i, x, 0),
    "a scatter into a result": lambda o, x, i: o.scatter(o.exp(x), i, 3.0, 0),
}  # fmt: skip


@pytest.mark.parametrize("is_static", [False, True], ids=["open sizes", "static sizes"])
@pytest.mark.parametrize("name", TOO_LARGE)
def test_an_index_larger_than_its_tensor_is_refused(name: str, is_static: bool) -> None:
    """It would be read as if the rows went on in the next one, and behind the last row there is nothing."""
    with pytest.raises(RuntimeError, match="must not be larger|lets the second be as large as the first at most"), FusionDefinition() as fd:
        shapes = ([4, 6], [4, 8]) if is_static else ([-1, -1], [-1, -1])
        x, index = fd.define_tensor(shapes[0], True), fd.define_tensor(shapes[1], True, dtype=DataType.Int)
        fd.add_output(TOO_LARGE[name](fd.ops, x, index))
        fd.execute([X.to(DEVICE), INDEX.to(DEVICE)])


def test_elements_do_not_vanish_in_a_reshape_to_nothing() -> None:
    for build in (lambda o, x: o.reshape(x, [0, 24]), lambda o, x: o.exp(o.reshape(o.neg(x), [2, 0]))):
        with FusionDefinition() as fd:
            fd.add_output(build(fd.ops, fd.define_tensor([-1, -1], contiguity=True)))
        with pytest.raises(RuntimeError, match="Total element counts across view operation must match"):
            fd.execute([X.to(DEVICE)])
        assert fd.execute([X[:0].to(DEVICE)])[0].numel() == 0
