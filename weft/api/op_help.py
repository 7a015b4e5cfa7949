"""What `help(fd.ops.NAME)`, `inspect.signature` and editors say about the arguments of ops: types and meaning by the argument's name.

Owns the table `ARGUMENTS`; names mean the same in every op. Read first: `help_text`.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from ..dtypes import DataType

OPERAND = "an operand: a tensor, a Scalar or a number; sizes broadcast from the last axis"
_SIZES, _INDEX = "Sequence[int | Scalar]", "TensorView | Scalar | int"
ARGUMENTS: dict[str, tuple[str, str]] = {
    "a": ("Operand", OPERAND),
    "axes": ("int", "over how many axes of arg, from dim on, positions are counted"),
    "b": ("Operand", OPERAND),
    "c": ("Operand", OPERAND),
    "x": ("Operand", "the operand: a tensor, or for ops of elements a Scalar or a number"),
    "arg": ("TensorView", "the tensor"),
    "arg1": ("TensorView", "[..., m, k]"),
    "arg2": ("TensorView", "[..., k, n]; of linear, the weight [n, k]"),
    "alpha": ("Any", "a number, the op's parameter of that name"),
    "approximate": ("str", "'none' (by erf) or 'tanh'"),
    "beta": ("float", "where the two branches of the function meet, or its steepness"),
    "bias": ("TensorView | None", "added at the end, of the sizes of the weight; None: nothing"),
    "block_size": ("Any", "elements that share one scale"),
    "begins": (_INDEX, "where each sum begins: a place in the order, or a row; one axis"),
    "broadcast_dims": ("Sequence[int]", "for each axis of arg, its place among the axes of shape"),
    "columns": ("int | Scalar", "size of the last axis"),
    "condition": ("Operand", "a tensor of bool, or a bool"),
    "correction": ("float", "what is taken off the count: 1 is the sample's variance"),
    "delta": ("float", "where the loss turns from square to linear"),
    "descending": ("bool", "largest first"),
    "diagonal": ("int", "0 is the main diagonal, positive ones lie above"),
    "dim": ("int", "the axis; a negative one counts from the last"),
    "dim0": ("int", "an axis"),
    "dim1": ("int", "the axis that it is exchanged with"),
    "dims": ("int | Sequence[int] | None", "the axes that are folded, negative ones count from the last; None: all"),
    "dropout_p": ("Any", "probability of an element to be dropped"),
    "dtype": ("DType", "type of the result"),
    "end": ("Operand", OPERAND),
    "end_dim": ("int", "the last axis that is joined"),
    "end_indices": (_SIZES, "one past the last position, per axis"),
    "ends": (_INDEX, "where each sum ends, which is not included; one axis"),
    "entries": ("Any", "rows of the table"),
    "eps": ("float | None", "added under the root; None: the smallest step of the type"),
    "extent": ("Operand", "elements of the axis"),
    "fill_value": ("Operand", "the number"),
    "gate": ("Operand", "what the element before is multiplied with, of the shape of x or broadcast to it"),
    "global_scale": ("Any", "a tensor of one float, or None"),
    "grad": ("Operand", "gradient of the result"),
    "grad_output": ("Operand", "gradient of the result"),
    "high": ("Operand", "the upper bound; None: none"),
    "ignore_index": ("int", "targets of this value count nothing"),
    "imag": ("Operand", "the imaginary part"),
    "index": (_INDEX, "positions along the axis, integers; outside of it is an error of the caller"),
    "init": ("Any", "what the running value begins with; None: the first element"),
    "input": ("Operand", "the tensor"),
    "input_offsets": ("Operand", "where each group begins among the rows, int32"),
    "is_broadcast_dim": ("Sequence[bool]", "per axis of the result: True for a new axis of size 1"),
    "is_causal": ("Any", "positions see none behind them"),
    "k": ("int", "how many"),
    "keepdim": ("bool", "folded axes stay, with size 1"),
    "key": ("TensorView", "[batch, heads, positions, size of a head]"),
    "kind": ("str", "how rows are combined: 'sum', 'max', 'min', or 'set', which replaces"),
    "label_smoothing": ("float", "share of the target that goes to all classes alike"),
    "lambd": ("float", "half the width of the range that becomes 0"),
    "largest": ("bool", "the largest values, else the smallest"),
    "layout": ("Any", "how scales lie in memory"),
    "length": ("int | Scalar", "number of elements"),
    "limit": ("float", "elements up to it are replaced"),
    "log_target": ("bool", "the target is given as logarithms"),
    "logsumexp": ("Operand", "what the forward returned"),
    "low": ("Operand", "the lower bound; None: none"),
    "manual_normalization": ("Any", "True: 0 <= start <= end <= size is promised"),
    "manual_padding": ("Any", "True is not supported"),
    "mask": ("TensorView", "a tensor of bool"),
    "mat1": ("Operand", "[m, k]"),
    "mat2": ("Operand", "[k, n]"),
    "max_norm": ("Any", "None"),
    "max_val": ("float", "the upper bound"),
    "maxval": ("Operand", "numbers are below it: a Scalar or a number"),
    "mean": ("Operand", "a Scalar or a number"),
    "min_val": ("float", "the lower bound"),
    "minval": ("Operand", "the least number: a Scalar or a number"),
    "negative_slope": ("float", "factor of negative elements"),
    "new_shape": (_SIZES, "sizes; one may be -1"),
    "norm_type": ("Any", "2.0"),
    "normalized_shape": ("int | Sequence[int | Scalar]", "sizes of the last axes, over which is normalized; [-1] for the last one of any size"),
    "offsets": ("Any", "where each group ends among the rows, int32"),
    "order": ("Any", "the rows that are added, one axis; None: all rows in their own order"),
    "output": ("Operand", "what the forward returned"),
    "output_block_scale_dtype": ("Any", "type of the scales of a narrow result"),
    "output_block_scale_size": ("int", "elements of a narrow result that share a scale, 0: none"),
    "output_gamma": ("bool", "whether a narrow result has a scale of its own"),
    "output_offsets": ("Operand", "where each group begins in the result, int32"),
    "p": ("float", "order of a norm, or the probability of dropout"),
    "pad_widths": (_SIZES, "two widths per axis, the innermost axis first; negative ones crop"),
    "padding_idx": ("Any", "None"),
    "philox_offset": ("Operand", "what the forward returned"),
    "philox_seed": ("Operand", "what the forward returned"),
    "position": ("Operand", "integers"),
    "query": ("TensorView", "[batch, heads, positions, size of a head]"),
    "real": ("Operand", "the real part"),
    "reduction": ("str", "'mean', 'sum' or 'none'"),
    "reverse": ("bool", "begin at the last element"),
    "rng_offset": ("Any", "an integer Scalar, or a tensor of one integer, which the kernel reads; None: torch's generator of the device, which moves on"),
    "rng_seed": ("Any", "an integer Scalar, or a tensor of one integer, which the kernel reads; None: torch's generator of the device"),
    "rows": ("int | Scalar", "size of the axis before the last"),
    "running_mean": ("TensorView | None", "[channels]"),
    "running_var": ("TensorView | None", "[channels]"),
    "scale": ("Any", "factor of the scores; None: 1 / sqrt(size of a head)"),
    "scale1": ("Operand", "scales of mat1"),
    "scale2": ("Operand", "scales of mat2"),
    "scale_grad_by_freq": ("Any", "False"),
    "shape": (_SIZES, "sizes, integers or Scalars"),
    "signs": ("Sequence[int]", "1 or -1 per element of a block"),
    "skip": ("bool", "leave out rows whose position is outside of arg"),
    "sorted": ("bool", "values in order"),
    "sparse": ("Any", "False"),
    "squeeze_expanded": ("bool", "also axes that only repeat one element"),
    "src": ("Operand", "the values that are written"),
    "stable": ("bool", "equal elements keep their order"),
    "start": ("Operand", "the first number, or an operand"),
    "start_dim": ("int", "the first axis that is joined"),
    "start_indices": (_SIZES, "the first position, per axis"),
    "std": ("Operand", "a Scalar or a number"),
    "step": ("Operand", "a Scalar or a number"),
    "stride_order": ("Sequence[int]", "per axis its place in memory, 0 the innermost"),
    "strides": ("Sequence[int] | None", "all 1"),
    "swizzle_block_scales": ("Any", "scales in the order that tensor cores read"),
    "target": ("TensorView", "what the operand is compared with; of cross_entropy, classes as integers"),
    "tensors": ("Sequence[TensorView]", "at least one; sizes are equal but along dim"),
    "threshold": ("float", "above it the function is the identity"),
    "training": ("bool", "False: the op of inference"),
    "value": ("Operand", "a number or an operand"),
    "weight": ("TensorView | None", "factors, of the normalized sizes or one per channel or class; None: ones"),
    "weights": ("Any", "a factor for each row that is added, one axis; None: all are 1"),
}


LISTED_DIMS = ("Sequence[int]", "the axes, in a list; negative ones count from the last")
"""`dims` of nvFuser's ops that take no single number there."""


def is_listed(parameter: inspect.Parameter, signature: inspect.Signature) -> bool:
    """Tell whether a parameter is `dims` of such an op."""
    return parameter.name == "dims" and parameter.default is parameter.empty and "arg" in signature.parameters


def described(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature whose parameters have the types of the table."""
    parameters = []
    for parameter in signature.parameters.values():
        kind = LISTED_DIMS[0] if is_listed(parameter, signature) else type_of(parameter.name, parameter.default)
        parameters.append(parameter.replace(annotation=kind or parameter.annotation))
    return signature.replace(parameters=parameters)


def type_of(name: str, default: Any) -> str:
    """Return the type of an argument, by its name or else by its default; "" where neither tells."""
    kind = ARGUMENTS.get(name, ("Any", ""))[0]
    if kind == "Any":
        by_default = "DType" if isinstance(default, DataType) else type(default).__name__ if isinstance(default, (bool, int, float, str)) else ""
        return by_default or ("Any" if name in ARGUMENTS else "")
    return kind + " | None" if default is None and "None" not in kind else kind


def help_text(name: str, function: Callable[..., Any], signature: inspect.Signature) -> str:
    """Return what help() prints about an op: the call, what it returns, its arguments with types, shapes and meaning, its errors."""
    lines = [_call(name, signature), "", inspect.cleandoc(function.__doc__ or "")]
    rows = [
        (p.name, str(p.annotation), (LISTED_DIMS if is_listed(p, signature) else ARGUMENTS[p.name])[1])
        for p in signature.parameters.values()
        if p.name in ARGUMENTS
    ]
    if rows:
        lines += ["", "Arguments:"]
        for argument, kind, words in rows:
            text = f"{argument}: {kind.replace('DType', 'DataType | torch.dtype')}; {words}"
            lines.append(textwrap.fill(text, 110, initial_indent="    ", subsequent_indent="        "))
    if any("Operand" in kind for _, kind, _ in rows):
        lines += ["", "Operand is TensorView | Scalar | int | float | complex."]
    lines += ["", "Errors: weft.UserError, with a code, your line and what to write, for arguments of other kinds, types or sizes."]
    return "\n".join(lines)


def _call(name: str, signature: inspect.Signature) -> str:
    texts: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in texts:
            texts.append("*")
        shown = str(parameter.default) if isinstance(parameter.default, DataType) else repr(parameter.default)
        default = "" if parameter.default is parameter.empty else f"={shown}"
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        texts.append(f"{star}{parameter.name}{default}")
    result = "" if signature.return_annotation is signature.empty else f" -> {signature.return_annotation}".replace("'", "")
    return f"{name}({', '.join(texts)}){result}"
