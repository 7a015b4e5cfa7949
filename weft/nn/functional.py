"""Functions of torch tensors with gradients: torch's names, arguments and results where torch has the function, Liger's and quack's where only they do.

Owns argument forms; formulas are the composites of `weft.ops`, so `fd.ops.layer_norm` and `weft.nn.functional.layer_norm` are one text.
All of them: any number of leading axes, any strides, empty batches, float32, bfloat16, float16 and float64; statistics and sums in float32 (float64 for
float64); out of place; the same bits from run to run. Under autocast, functions on torch's float32 list return float32, as torch's do.
Read first: `layer_norm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import UserError
from ..ops import composites as c
from ..runtime.argument_kinds import checked
from .family import Family, autocast_dtype, written
from .quick import quick

Tensor = torch.Tensor


class WrongArgument(UserError, ValueError):
    code = "W142"
    what = "{function}: {problem}"
    fix = "{remedy}"


class WrongDim(UserError, IndexError):
    code = "W151"
    what = "{function}: dim {dim} is out of range for {axes} axes"
    fix = "name an axis of the input; -1 is the last"


def _out(x: Tensor, dtype: torch.dtype | None = None) -> torch.dtype:
    """Return the type of a result: as given, float32 under autocast, else that of x."""
    return dtype or autocast_dtype(x) or x.dtype


# ---------------------------------------------------------------- softmax
_SOFTMAX = Family("softmax", lambda o, x, *, dim, out: o.softmax(x, dim, out), ["input"], keeps_layout=True)
_LOG_SOFTMAX = Family("log_softmax", lambda o, x, *, dim, out: o.log_softmax(x, dim, out), ["input"], keeps_layout=True)


def _softmax_dim(name: str, x: Tensor, dim: int | None) -> int:
    if dim is None:
        raise WrongArgument(function=name, problem="dim is None", remedy="name the axis: dim=-1")
    if not isinstance(dim, int):
        raise WrongArgument(function=name, problem=f"dim is {dim!r}", remedy="give the number of an axis: dim=-1")
    if not -max(x.dim(), 1) <= dim < max(x.dim(), 1):
        raise WrongDim(function=name, dim=dim, axes=x.dim())
    return dim % max(x.dim(), 1)


@quick
def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
    """torch.nn.functional.softmax; dim is required."""
    place = _softmax_dim("softmax", input, dim)
    if not input.dim():  # torch takes a single number for a row of one
        return softmax(input.reshape(1), 0, dtype=dtype).reshape(())
    return _SOFTMAX((input,), dim=place, out=_out(input, dtype))


@quick
def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
    """torch.nn.functional.log_softmax; dim is required."""
    place = _softmax_dim("log_softmax", input, dim)
    if not input.dim():  # torch takes a single number for a row of one
        return log_softmax(input.reshape(1), 0, dtype=dtype).reshape(())
    return _LOG_SOFTMAX((input,), dim=place, out=_out(input, dtype))


def _masked_softmax(o: Any, x: Any, mask: Any, *, scale: float, causal: bool) -> Any:
    scores = c.wide(x) * scale
    if mask is not None and mask.dtype().is_bool:
        scores = o.where(mask, scores, float("-inf"))
    elif mask is not None:
        scores = scores + c.wide(mask)
    if causal:
        scores = o.where(o.causal_mask(x.size(-2), x.size(-1)), scores, float("-inf"))
    return o.softmax(scores, -1, x.dtype())


_MASKED = Family("scaled_masked_softmax", _masked_softmax, ["input", "mask"])


@quick
def scaled_masked_softmax(input: Tensor, mask: Tensor | None, scale: float = 1.0) -> Tensor:
    """softmax(scale * input) over the last axis; mask: True where an element counts, or floats that are added; it broadcasts against input."""
    return _MASKED((input, mask), scale=float(scale), causal=False)


@quick
def scaled_causal_softmax(input: Tensor, scale: float = 1.0) -> Tensor:
    """softmax(scale * input [..., queries, keys]) over the keys that a query may see: key <= query + keys - queries."""
    return _MASKED((input, None), scale=float(scale), causal=True)


# ---------------------------------------------------------------- norms along the last axes
def _layer_norm(o: Any, x: Any, weight: Any, bias: Any, *, rank: int, eps: float, out: Any) -> Any:
    return c.narrowed(o.layer_norm(c.wide(x), [-1] * rank, weight, bias, eps), out)


_LAYER_NORM = Family("layer_norm", _layer_norm, ["input", "weight", "bias"], folds=True)


def _normalized(name: str, x: Tensor, shape: Sequence[int] | int, *parameters: Tensor | None) -> int:
    """Return the number of normalized axes. Errors: WrongArgument where shapes do not fit."""
    if isinstance(shape, Tensor):
        raise WrongArgument(function=name, problem="normalized_shape is a tensor", remedy=f"write {name}(x, x.shape[-1:], weight)")
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if not sizes or tuple(x.shape[x.dim() - len(sizes) :]) != sizes:
        problem = f"normalized_shape is {list(sizes)}, the input has sizes {list(x.shape)}"
        raise WrongArgument(function=name, problem=problem, remedy="give the sizes of the last axes of the input")
    for parameter in parameters:
        if parameter is not None and tuple(parameter.shape) != sizes:
            problem = f"weight or bias has sizes {list(parameter.shape)}, normalized_shape is {list(sizes)}"
            raise WrongArgument(function=name, problem=problem, remedy="make them of normalized_shape")
    return len(sizes)


@quick
def layer_norm(input: Tensor, normalized_shape: Sequence[int] | int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """torch.nn.functional.layer_norm. weight and bias may be of another float type than input; the result has the input's."""
    rank = _normalized("layer_norm", input, normalized_shape, weight, bias)
    return _LAYER_NORM((input, weight, bias), rank=rank, eps=float(eps), out=_out(input))


CASTINGS = ("torch", "llama", "gemma")


def _rms_norm(o: Any, x: Any, weight: Any, residual: Any, *, rank: int, eps: float | None, offset: float, casting: str, out: Any, kept: Any) -> Any:
    wide = c.wide(x)
    if residual is not None:
        wide = c.narrowed(wide + c.wide(residual), kept)
        total = wide
        wide = c.wide(wide)
    eps = c.EPSILON.get(x.dtype(), 2.0**-23) if eps is None else eps
    y = o.rms_norm(wide, [-1] * rank, None, eps)
    if weight is not None:
        w = c.wide(weight)
        if casting == "llama":
            y = c.wide(c.narrowed(y, x.dtype()))
        y = y * (w + offset if offset else w)
    y = c.narrowed(y, out)
    return y if residual is None else (y, total)


_RMS_NORM = Family("rms_norm", _rms_norm, ["input", "weight", "residual"], folds=True)


@quick
def rms_norm(
    input: Tensor, normalized_shape: Sequence[int] | int, weight: Tensor | None = None, eps: float | None = None, *, residual: Tensor | None = None,
    residual_dtype: torch.dtype | None = None, weight_offset: float = 0.0, casting: str = "torch",
) -> Any:  # fmt: skip
    """torch.nn.functional.rms_norm, and what models add to it.

    residual: is added first; then (result, sum) is returned, the sum in residual_dtype (the residual's own unless given).
    weight_offset: is added to the weight (1.0 for weights that are stored around 0). casting: "torch" and "gemma" multiply by the weight in float32 and round
    once; "llama" rounds to the input's type before the weight, as Hugging Face's Llama does.
    """
    rank = _normalized("rms_norm", input, normalized_shape, weight)
    if casting not in CASTINGS:
        raise WrongArgument(function="rms_norm", problem=f"casting is {casting!r}", remedy=f"give one of {', '.join(CASTINGS)}")
    kept = None if residual is None else residual_dtype or residual.dtype
    eps = None if eps is None else float(eps)
    static = {"rank": rank, "eps": eps, "offset": float(weight_offset), "casting": casting, "out": _out(input), "kept": kept}
    return _RMS_NORM((input, weight, residual), **static)


@checked
def add_rms_norm(input: Tensor, residual: Tensor, weight: Tensor | None, eps: float = 1e-6, **keywords: Any) -> tuple[Tensor, Tensor]:
    """Return (rms_norm(input + residual), input + residual): rms_norm over the last axis with residual=."""
    return rms_norm(input, input.shape[-1:], weight, eps, residual=residual, **keywords)


def _dropout_add_layer_norm(o: Any, x: Any, residual: Any, weight: Any, bias: Any, *, p: float, eps: float, kept: Any) -> Any:
    total = c.wide(o.dropout(c.wide(x), p)) if p else c.wide(x)
    if residual is not None:
        total = total + c.wide(residual)
    total = c.narrowed(total, kept)
    return c.narrowed(o.layer_norm(c.wide(total), [-1], weight, bias, eps), x.dtype()), total


_DROPOUT_ADD = Family("dropout_add_layer_norm", _dropout_add_layer_norm, ["input", "residual", "weight", "bias"])


@quick
def dropout_add_layer_norm(
    input: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None = None, dropout_p: float = 0.0, eps: float = 1e-5, *,
    training: bool = True, residual_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return (layer_norm(s), s) over the last axis, s = dropout(input) + residual in residual_dtype (the residual's, or the input's)."""
    if not 0.0 <= dropout_p <= 1.0:
        raise WrongArgument(function="dropout_add_layer_norm", problem=f"dropout_p is {dropout_p}", remedy="give a probability from 0 to 1")
    kept = residual_dtype or (input.dtype if residual is None else residual.dtype)
    return _DROPOUT_ADD((input, residual, weight, bias), p=float(dropout_p) if training else 0.0, eps=float(eps), kept=kept)


# ---------------------------------------------------------------- norms over channels
def _group_norm(o: Any, x: Any, weight: Any, bias: Any, *, eps: float, out: Any) -> Any:
    """x: [samples, groups, channels of a group, rest ...]; weight and bias: [groups, channels of a group]."""
    wide = c.wide(x)
    variance, average = o.var_mean(wide, list(range(2, x.ndim)), 0, True)
    y = (wide - average) * o.rsqrt(variance + eps)
    spread = [d not in (1, 2) for d in range(x.ndim)]
    y = y if weight is None else y * c.wide(o.broadcast(weight, spread))
    return c.narrowed(y if bias is None else y + c.wide(o.broadcast(bias, spread)), out)


_GROUP_NORM = Family("group_norm", _group_norm, ["input", "weight", "bias"], keeps_layout=True)


@checked
def group_norm(input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """torch.nn.functional.group_norm."""
    channels = input.shape[1] if input.dim() > 1 else 0
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and tuple(parameter.shape) != (channels,):
            problem = f"{name} has sizes {list(parameter.shape)}, the input {channels} channels"
            raise WrongArgument(function="group_norm", problem=problem, remedy=f"give {name} one element per channel")
    if num_groups < 1 or channels % num_groups or not channels:
        problem = f"{channels} channels cannot be split into {num_groups} groups"
        raise WrongArgument(function="group_norm", problem=problem, remedy="give input [samples, channels, ...] and a divisor of the channels")
    view = input.unflatten(1, (num_groups, channels // num_groups))
    w, b = (None if p is None else p.view(num_groups, channels // num_groups) for p in (weight, bias))
    return _GROUP_NORM((view, w, b), eps=float(eps), out=_out(input)).flatten(1, 2)


def _batch_norm(
    o: Any, x: Any, running_mean: Any, running_var: Any, weight: Any, bias: Any, *, training: bool, momentum: float, eps: float, out: Any, writes: bool
) -> Any:  # fmt: skip
    dims, spread = [d for d in range(x.ndim) if d != 1], [d != 1 for d in range(x.ndim)]
    wide = c.wide(x)
    results: list[Any] = []
    if training or running_mean is None:
        variance, average = o.var_mean(wide, dims, 0, True)
        if training and running_mean is not None:
            n = c.count(x, dims)
            flat_mean, flat_var = o.squeeze(average, dims), o.squeeze(variance, dims)
            unbiased = flat_var * (n / (n - 1.0))
            for old, new in ((running_mean, flat_mean), (running_var, unbiased)):
                value = c.narrowed(c.wide(old) * (1.0 - momentum) + c.detached(o.set(new)) * momentum, old.dtype())
                results.append(written(value, old) if writes else value)
    else:
        average, variance = (c.wide(o.broadcast(v, spread)) for v in (running_mean, running_var))
    y = (wide - average) * o.rsqrt(variance + eps)
    y = y if weight is None else y * c.wide(o.broadcast(weight, spread))
    return (c.narrowed(y if bias is None else y + c.wide(o.broadcast(bias, spread)), out), *results)


_BATCH_NORM = Family("batch_norm", _batch_norm, ["input", "running_mean", "running_var", "weight", "bias"], keeps_layout=True)


@quick
def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """torch.nn.functional.batch_norm; running statistics are updated in the same kernel."""
    if training and input.dim() > 1 and input.numel() == input.shape[1]:
        raise WrongArgument(function="batch_norm", problem=f"one value per channel in {list(input.shape)}", remedy="give more than one value when training")
    if (running_mean is None) != (running_var is None):
        problem = f"running_{'var' if running_var is None else 'mean'} is left out, and the other is not"
        raise WrongArgument(function="batch_norm", problem=problem, remedy="give both, or neither")
    if not training and running_mean is None:
        problem = "training is False and there are no running statistics"
        raise WrongArgument(function="batch_norm", problem=problem, remedy="give running_mean and running_var, or training=True")
    is_graph = torch.compiler.is_compiling()  # an operator in a graph writes into no input: it returns the new statistics
    static = {"training": bool(training), "momentum": float(momentum), "eps": float(eps), "out": input.dtype, "writes": not is_graph}
    result = _BATCH_NORM((input, running_mean, running_var, weight, bias), **static)
    if isinstance(result, tuple) and running_mean is not None and running_var is not None:
        result, new_mean, new_var = result
        running_mean.copy_(new_mean), running_var.copy_(new_var)
    return result


def _instance_norm(o: Any, x: Any, weight: Any, bias: Any, *, eps: float) -> Any:
    return o.instance_norm(x, weight, bias, eps)


_INSTANCE_NORM = Family("instance_norm", _instance_norm, ["input", "weight", "bias"], keeps_layout=True)


@checked
def instance_norm(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """torch.nn.functional.instance_norm; running statistics are taken over all samples, as torch does."""
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            dims = tuple(range(2, input.dim()))
            variance, average = torch.var_mean(input.detach().to(running_mean.dtype), dims)
            running_mean.lerp_(average.mean(0), momentum)
            running_var.lerp_(variance.mean(0), momentum)
    return _INSTANCE_NORM((input, weight, bias), eps=float(eps))


def _normalize(o: Any, x: Any, *, p: float, dim: int, eps: float) -> Any:
    return o.normalize(x, p, dim, eps)


_NORMALIZE = Family("normalize", _normalize, ["input"], keeps_layout=True)


@quick
def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None) -> Tensor:
    """torch.nn.functional.normalize."""
    if out is not None:
        raise WrongArgument(function="normalize", problem="out is given", remedy="use the returned tensor")
    return _NORMALIZE((input,), p=float(p), dim=int(dim), eps=float(eps))


# ---------------------------------------------------------------- activations
_GELU = Family("gelu", lambda o, x, *, approximate: o.gelu(x, approximate), ["input"], keeps_layout=True, folds=True)
_SILU = Family("silu", lambda o, x: c.narrowed(o.silu(x), x.dtype()), ["input"], keeps_layout=True, folds=True)


@quick
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """torch.nn.functional.gelu."""
    return _GELU((input,), approximate=approximate)


@quick
def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """torch.nn.functional.silu, out of place."""
    if inplace:
        raise WrongArgument(function="silu", problem="inplace=True", remedy="use the returned tensor: a gradient needs the input")
    return _SILU((input,))


_SWIGLU = Family("swiglu", lambda o, a, b: o.swiglu(a, b), ["gate", "value"], keeps_layout=True)
_GEGLU = Family("geglu", lambda o, a, b, *, exact: o.geglu_exact(a, b) if exact else o.geglu(a, b), ["gate", "value"], keeps_layout=True)


class _HalvesFamily(Family):
    """The last axis of its tensors has a fixed size, so that its halves are slices by numbers."""

    def definition(self, forms: Sequence[Any], static: dict[str, Any]) -> Any:
        fixed = [(dtype, (*sizes[:-1], 2 * static["half"]), contiguity, order) for dtype, sizes, contiguity, order in forms]
        return super().definition(fixed, static)


_PACKED_SWIGLU = _HalvesFamily("packed_swiglu", lambda o, x, *, half: o.swiglu(x[..., :half], x[..., half:]), ["gate"])
_PACKED_GEGLU = _HalvesFamily(
    "packed_geglu", lambda o, x, *, half, exact: (o.geglu_exact if exact else o.geglu)(x[..., :half], x[..., half:]), ["gate"]
)  # fmt: skip


def _half(name: str, gate: Tensor) -> int:
    """Return the size of the gate in a packed input. Errors: WrongArgument."""
    if not gate.dim() or gate.shape[-1] % 2:
        problem = f"the packed input has sizes {list(gate.shape)}"
        raise WrongArgument(function=name, problem=problem, remedy="give gate and value side by side, of one size, or as two tensors")
    return gate.shape[-1] // 2


@quick
def swiglu(gate: Tensor, value: Tensor | None = None) -> Tensor:
    """Return silu(gate) * value; with one tensor its first half along the last axis is the gate, the second the value."""
    if value is None and _half("swiglu", gate):
        return _PACKED_SWIGLU((gate,), half=gate.shape[-1] // 2)
    return _SWIGLU(tuple(gate.chunk(2, -1)) if value is None else (gate, value))


@quick
def geglu(gate: Tensor, value: Tensor | None = None, approximate: str = "tanh") -> Tensor:
    """Return gelu(gate) * value; with one tensor its first half along the last axis is the gate. approximate: "tanh" (Liger's) or "none"."""
    if approximate not in ("tanh", "none"):
        raise WrongArgument(function="geglu", problem=f"approximate is {approximate!r}", remedy="give 'tanh' or 'none'")
    if value is None and _half("geglu", gate):
        return _PACKED_GEGLU((gate,), half=gate.shape[-1] // 2, exact=approximate == "none")
    return _GEGLU(tuple(gate.chunk(2, -1)) if value is None else (gate, value), exact=approximate == "none")


# ---------------------------------------------------------------- positions
def _rope(o: Any, x: Any, cos: Any, sin: Any, *, half: int) -> Any:
    wide = c.wide(x)
    turned = o.cat([-(wide[..., half:]), wide[..., :half]], -1)
    return c.narrowed(wide * c.wide(cos) + turned * c.wide(sin), x.dtype())


_ROPE = _HalvesFamily("rope", _rope, ["x", "cos", "sin"])


@checked
def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """Return q and k turned by position, halves against each other: Hugging Face's function. q, k: [batch, heads, positions, size]; cos, sin: [batch,
    positions, size]."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return rope(q, cos, sin), rope(k, cos, sin)


@quick
def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x * cos + (-second half, first half) * sin along the last axis; cos and sin broadcast against x."""
    if not (x.dim() and cos.dim() and sin.dim()):
        problem = f"x, cos and sin have {x.dim()}, {cos.dim()} and {sin.dim()} axes"
        raise WrongArgument(function="rope", problem=problem, remedy="give tensors whose last axis is the size of a head")
    if x.shape[-1] % 2 or cos.shape[-1] != x.shape[-1] or sin.shape[-1] != x.shape[-1]:
        problem = f"the last axes are {x.shape[-1]}, {cos.shape[-1]} and {sin.shape[-1]} for x, cos and sin"
        raise WrongArgument(function="rope", problem=problem, remedy="give one even size to all three")
    return _ROPE((x, cos, sin), half=x.shape[-1] // 2)


# ---------------------------------------------------------------- losses
def _cross_entropy(
    o: Any, x: Any, target: Any, weight: Any, *, ignore_index: int, reduction: str, smoothing: float, z_loss: float, softcap: float, out: Any
) -> Any:
    from ..ops.losses import cross_entropy_rows

    loss, weights = cross_entropy_rows(x.fusion, x, target, weight, ignore_index, smoothing, z_loss, softcap)
    if reduction == "none":
        return c.narrowed(loss, out)
    total = o.sum(loss, [0])
    return c.narrowed(total if reduction == "sum" else total / o.sum(weights, [0]), out)


_CROSS_ENTROPY = Family("cross_entropy", _cross_entropy, ["input", "target", "weight"])


def _reduction(function: str, size_average: Any, reduce: Any, reduction: str, allowed: tuple[str, ...] = ("none", "mean", "sum")) -> str:
    if size_average is not None or reduce is not None:
        raise WrongArgument(function=function, problem="size_average and reduce are given", remedy="give reduction='mean', 'sum' or 'none'")
    if reduction not in allowed:
        raise WrongArgument(function=function, problem=f"reduction is {reduction!r}", remedy=f"give one of {', '.join(allowed)}")
    return reduction


@quick
def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None, ignore_index: int = -100, reduce: bool | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0, *, z_loss: float = 0.0, softcap: float = 0.0, out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """torch.nn.functional.cross_entropy for class numbers. z_loss: adds z_loss * logsumexp**2 per row; softcap: logits become softcap * tanh(x / softcap).

    out_dtype: type of the loss, the input's unless given; it is computed in float32 from logits of 16 bits as they are.
    The loss is NaN where a target is neither a class nor ignore_index.
    """
    reduction = _reduction("cross_entropy", size_average, reduce, reduction)
    if target.is_floating_point():
        problem = "the target has probabilities"
        raise WrongArgument(function="cross_entropy", problem=problem, remedy="write -(target * log_softmax(input, 1)).sum(1).mean()")
    if input.dim() == 0 or tuple(target.shape) != (*input.shape[:1], *input.shape[2:])[: max(input.dim() - 1, 0)] and input.dim() > 1:
        problem = f"input has sizes {list(input.shape)}, the target {list(target.shape)}"
        raise WrongArgument(function="cross_entropy", problem=problem, remedy="give logits [rows, classes, ...] and class numbers [rows, ...]")
    if weight is not None and weight.requires_grad and torch.is_grad_enabled():
        problem = "weight requires a gradient, and the loss has none with respect to it, as in torch"
        raise WrongArgument(function="cross_entropy", problem=problem, remedy="give weight.detach()")
    if not 0.0 <= label_smoothing <= 1.0:
        problem = f"label_smoothing is {label_smoothing}"
        raise WrongArgument(function="cross_entropy", problem=problem, remedy="give the share of the labels that is spread over all classes, from 0 to 1")
    classes = input.shape[1] if input.dim() > 1 else input.shape[0]
    static = {
        "ignore_index": int(ignore_index), "reduction": reduction, "smoothing": float(label_smoothing), "z_loss": float(z_loss), "softcap": float(softcap),
        "out": _out(input, out_dtype),
    }  # fmt: skip
    if input.dim() == 2:  # as they are, so that the call can be remembered
        return _CROSS_ENTROPY((input, target, weight), **static)
    rows = input.movedim(1, -1) if input.dim() > 2 else input
    loss = _CROSS_ENTROPY((rows.reshape(-1, classes), target.reshape(-1), weight), **static)
    return loss.reshape(target.shape) if reduction == "none" else loss


def _kl_div(o: Any, x: Any, y: Any, *, reduction: str, log_target: bool, out: Any) -> Any:
    return c.narrowed(o.kl_div(c.wide(x), c.wide(y), reduction, log_target), out)


_KL_DIV = Family("kl_div", _kl_div, ["input", "target"])


@quick
def kl_div(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean", log_target: bool = False
) -> Tensor:  # fmt: skip
    """torch.nn.functional.kl_div."""
    reduction = _reduction("kl_div", size_average, reduce, reduction, ("none", "mean", "sum", "batchmean"))
    return _KL_DIV((input, target), reduction=reduction, log_target=bool(log_target), out=_out(input))


@checked
def embedding_rms_norm(indices: Tensor, table: Tensor, weight: Tensor | None, eps: float = 1e-6, *, weight_offset: float = 0.0) -> Tensor:
    """Return rms_norm(table[indices]) over the last axis. The rows are looked up by torch, whose backward adds up repeated ones deterministically."""
    _check_indices("embedding_rms_norm", indices, table)
    return rms_norm(torch.nn.functional.embedding(indices, table), table.shape[-1:], weight, eps, weight_offset=weight_offset)


def _check_indices(function: str, indices: Tensor, table: Tensor) -> None:
    if table.dim() != 2:
        raise WrongArgument(function=function, problem=f"the table has sizes {list(table.shape)}", remedy="give a matrix, a row for each index")
    if indices.dtype not in (torch.int64, torch.int32):
        raise WrongArgument(function=function, problem=f"indices have the type {indices.dtype}", remedy="give whole numbers: indices.long()")


@checked
def embedding_layer_norm(indices: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Return layer_norm(table[indices]) over the last axis; see `embedding_rms_norm`."""
    _check_indices("embedding_layer_norm", indices, table)
    return layer_norm(torch.nn.functional.embedding(indices, table), table.shape[-1:], weight, bias, eps)


__all__ = [
    "add_rms_norm", "apply_rotary_pos_emb", "batch_norm", "cross_entropy", "dropout_add_layer_norm", "embedding_layer_norm", "embedding_rms_norm", "geglu",
    "gelu", "group_norm", "instance_norm", "kl_div", "layer_norm", "log_softmax", "normalize", "rms_norm", "rope", "scaled_causal_softmax",
    "scaled_masked_softmax", "silu", "softmax", "swiglu",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    known = hasattr(torch.nn.functional, name)
    theirs = f': use torch.nn.functional.{name}; torch.compile(model, backend="weft") fuses it with what stands around it' if known else ""
    raise AttributeError(f"module 'weft.nn.functional' has no attribute {name!r}{theirs or '; dir(weft.nn.functional) lists what it has'}")


def __dir__() -> list[str]:
    return sorted(__all__)
