"""Made by docs/make_stubs.py from the registry of ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch

from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.values import Scalar, TensorView

_int = int  # methods have the names of some types
_float = float
_bool = bool
_str = str
_complex = complex
DType = DataType | torch.dtype
Number = complex
Operand = TensorView | Scalar | complex

class OpNames:
    def __init__(self, fusion_of: Callable[[_str], Fusion]) -> None: ...

    @overload
    def abs(self, x: TensorView, /) -> TensorView:
        """Return abs(x), elementwise."""
        ...
    @overload
    def abs(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def acos(self, x: TensorView, /) -> TensorView:
        """Return acos(x), elementwise."""
        ...
    @overload
    def acos(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def acosh(self, x: TensorView, /) -> TensorView:
        """Return acosh(x), elementwise."""
        ...
    @overload
    def acosh(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def add(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return add(a, b), elementwise."""
        ...
    @overload
    def add(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def add(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    def addcmul(self, a: Operand, b: Operand, c: Operand, value: Operand, /) -> TensorView:
        """Return a + value * b * c."""
        ...

    def all(self, x: Operand, dims: _int | Sequence[_int] | None = ..., keepdim: _bool = ...) -> TensorView:
        """Return whether every element over dims is not zero: torch.all, which is true of nothing."""
        ...

    def amax(self, x: Operand, dims: _int | Sequence[_int] | None = ..., keepdim: _bool = ...) -> TensorView:
        """Return the largest element over dims; gradients are shared among equal ones: torch.amax."""
        ...

    def amin(self, x: Operand, dims: _int | Sequence[_int] | None = ..., keepdim: _bool = ...) -> TensorView:
        """Return the smallest element over dims; gradients are shared among equal ones: torch.amin."""
        ...

    def any(self, x: Operand, dims: _int | Sequence[_int] | None = ..., keepdim: _bool = ...) -> TensorView:
        """Return whether an element over dims is not zero: torch.any, which is false of nothing."""
        ...

    def arange(self, length: _int | Scalar, dtype: DType = ...) -> TensorView:
        """Return 0, 1, ... length - 1: torch.arange (ops.iota has start and step)."""
        ...

    def argmax(self, x: Operand, dim: _int | None = ..., keepdim: _bool = ...) -> TensorView:
        """Return the position of the largest element along dim, in the flattened tensor unless given; the first of equal ones: torch.argmax."""
        ...

    def argmin(self, x: Operand, dim: _int | None = ..., keepdim: _bool = ...) -> TensorView:
        """Return the position of the smallest element along dim, in the flattened tensor unless given; the first of equal ones: torch.argmin."""
        ...

    def argsort(self, arg: TensorView, dim: _int, descending: _bool = ..., stable: _bool = ...) -> TensorView:
        """Return the positions along dim in the order of the values of arg."""
        ...

    @overload
    def asin(self, x: TensorView, /) -> TensorView:
        """Return asin(x), elementwise."""
        ...
    @overload
    def asin(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def asinh(self, x: TensorView, /) -> TensorView:
        """Return asinh(x), elementwise."""
        ...
    @overload
    def asinh(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def atan(self, x: TensorView, /) -> TensorView:
        """Return atan(x), elementwise."""
        ...
    @overload
    def atan(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def atan2(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return atan2(a, b), elementwise."""
        ...
    @overload
    def atan2(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def atan2(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    @overload
    def atanh(self, x: TensorView, /) -> TensorView:
        """Return atanh(x), elementwise."""
        ...
    @overload
    def atanh(self, x: Scalar | Number, /) -> Scalar: ...

    def bag_sum(self, arg: TensorView, begins: TensorView | Scalar | _int, ends: TensorView | Scalar | _int, order: Any = ..., weights: Any = ...) -> TensorView:
        """Return for each v the sum of arg[order[k]] * weights[k] for k from begins[v] up to, not including, ends[v], added in this order; floats of 16 bits give"""
        ...

    def batch_norm(self, x: Operand, running_mean: TensorView | None = ..., running_var: TensorView | None = ..., weight: TensorView | None = ..., bias: TensorView | None = ..., training: _bool = ..., eps: _float | None = ...) -> TensorView:
        """Return x normalized per channel (axis 1): torch.nn.functional.batch_norm; running statistics are read, not updated (`weft.nn` does that)."""
        ...

    def binary_cross_entropy_with_logits(self, x: Operand, target: TensorView, reduction: _str = ...) -> TensorView:
        """Return the cross entropy of sigmoid(x): torch.nn.functional.binary_cross_entropy_with_logits without weights."""
        ...

    @overload
    def bitcast(self, x: TensorView, /) -> TensorView:
        """Return the bits of x, in Float or Int32, as numbers of the other type: torch.Tensor.view(dtype)."""
        ...
    @overload
    def bitcast(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def bitwise_and(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return bitwise_and(a, b), elementwise."""
        ...
    @overload
    def bitwise_and(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def bitwise_and(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    @overload
    def bitwise_left_shift(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return bitwise_left_shift(a, b), elementwise."""
        ...
    @overload
    def bitwise_left_shift(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def bitwise_left_shift(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    @overload
    def bitwise_not(self, x: TensorView, /) -> TensorView:
        """Return bitwise_not(x), elementwise."""
        ...
    @overload
    def bitwise_not(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def bitwise_or(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return bitwise_or(a, b), elementwise."""
        ...
    @overload
    def bitwise_or(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def bitwise_or(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    @overload
    def bitwise_right_shift(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return bitwise_right_shift(a, b), elementwise."""
        ...
    @overload
    def bitwise_right_shift(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def bitwise_right_shift(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    @overload
    def bitwise_xor(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return bitwise_xor(a, b), elementwise."""
        ...
    @overload
    def bitwise_xor(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def bitwise_xor(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    def block_amax(self, arg: TensorView, block_size: Any) -> TensorView:
        """Return, for each element, the largest magnitude of its block of block_size neighbours along the last axis, in Float. NaN does not count."""
        ...

    def block_hadamard(self, arg: TensorView, signs: Sequence[_int]) -> TensorView:
        """Return, in Float, each block of 16 neighbours along the last axis times diag(signs) H / 4. signs: 16 numbers, 1 or -1."""
        ...

    def block_sample(self, arg: TensorView, block_size: Any, layout: _str = ...) -> TensorView:
        """Return the first element of each block of block_size neighbours along the last axis; layout: "rows", "128x4" or "columns"."""
        ...

    def broadcast(self, arg: TensorView, is_broadcast_dim: Sequence[_bool]) -> TensorView:
        """Return arg with new axes of extent 1 where is_broadcast_dim is true."""
        ...

    def broadcast_in_dim(self, arg: TensorView, shape: Sequence[_int | Scalar], broadcast_dims: Sequence[_int]) -> TensorView:
        """Return arg with axis i at broadcast_dims[i] of shape, expanded to shape."""
        ...

    def broadcast_to(self, x: Operand, shape: Sequence[_int | Scalar]) -> TensorView:
        """Return x with leading axes added and axes of extent 1 expanded to shape: torch.broadcast_to."""
        ...

    def cast(self, arg: TensorView, dtype: DType) -> TensorView:
        """Return arg as dtype."""
        ...

    def cat(self, tensors: Sequence[TensorView], dim: _int = ..., manual_padding: _bool = ...) -> TensorView:
        """Return the tensors one behind the other along dim. manual_padding: they are results of pad that have the result's shape."""
        ...

    def causal_mask(self, rows: _int | Scalar, columns: _int | Scalar) -> TensorView:
        """Return a Bool tensor [rows, columns] that is true where column <= row + columns - rows: what a query may see."""
        ...

    @overload
    def ceil(self, x: TensorView, /) -> TensorView:
        """Return ceil(x), elementwise."""
        ...
    @overload
    def ceil(self, x: Scalar | Number, /) -> Scalar: ...

    def celu(self, x: Operand, alpha: _float = ...) -> TensorView:
        """Return x above 0, else alpha * (exp(x / alpha) - 1): torch.nn.functional.celu."""
        ...

    @overload
    def checked_position(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return position, of integers that are to be at least 0 and below extent. One that is not is 0 in a kernel, and an error in the emulator and under the"""
        ...
    @overload
    def checked_position(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def checked_position(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    def clamp(self, x: Operand, low: Operand, high: Operand, /) -> TensorView:
        """Return x limited to low .. high."""
        ...

    @overload
    def complex(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return real + i imag, of two tensors or two scalars."""
        ...
    @overload
    def complex(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def complex(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    @overload
    def copysign(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return a with the sign of b: torch.copysign."""
        ...
    @overload
    def copysign(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def copysign(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    @overload
    def cos(self, x: TensorView, /) -> TensorView:
        """Return cos(x), elementwise."""
        ...
    @overload
    def cos(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def cosh(self, x: TensorView, /) -> TensorView:
        """Return cosh(x), elementwise."""
        ...
    @overload
    def cosh(self, x: Scalar | Number, /) -> Scalar: ...

    def cross_entropy(self, x: Operand, target: TensorView, weight: TensorView | None = ..., ignore_index: _int = ..., reduction: _str = ..., label_smoothing: _float = ...) -> TensorView:
        """Return the cross entropy of logits x [rows, classes] for target [rows] (class numbers): torch.nn.functional.cross_entropy."""
        ...

    def cummax(self, arg: TensorView, dim: _int, init: Any = ...) -> TensorView:
        """Return the running max of arg along dim, from init on."""
        ...

    def cummax_with_indices(self, arg: TensorView, dim: _int) -> Any:
        """Return the running maximum of arg along dim, and its positions (Int), of equal values the last one: torch.cummax."""
        ...

    def cummin(self, arg: TensorView, dim: _int, init: Any = ...) -> TensorView:
        """Return the running min of arg along dim, from init on."""
        ...

    def cummin_with_indices(self, arg: TensorView, dim: _int) -> Any:
        """Return the running minimum of arg along dim, and its positions (Int), of equal values the last one: torch.cummin."""
        ...

    def cumprod(self, arg: TensorView, dim: _int, init: Any = ...) -> TensorView:
        """Return the running prod of arg along dim, from init on."""
        ...

    def cumsum(self, arg: TensorView, dim: _int, init: Any = ...) -> TensorView:
        """Return the running sum of arg along dim, from init on."""
        ...

    def cutlass_nvfp4_grouped_mm(self, mat1: Operand, mat2: Operand, scale1: Operand, scale2: Operand, alpha: Any, problem_sizes: Operand, expert_offsets: Operand, sf_offsets: Operand, dtype: DType = ...) -> TensorView:
        """cutlass_nvfp4_grouped_mm(mat1, mat2, scale1, scale2, alpha, problem_sizes, expert_offsets, sf_offsets, dtype=DataType.BFloat16) is not supported yet."""
        ...

    def detach(self, x: Operand) -> TensorView:
        """Return a copy of x through which no gradient flows."""
        ...

    @overload
    def digamma(self, x: TensorView, /) -> TensorView:
        """Return the derivative of lgamma at x: torch.digamma."""
        ...
    @overload
    def digamma(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def div(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return div(a, b), elementwise."""
        ...
    @overload
    def div(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def div(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    def dropout(self, x: Operand, p: _float = ..., training: _bool = ...) -> TensorView:
        """Return x with elements set to 0 at probability p and the others divided by 1 - p: torch.nn.functional.dropout."""
        ...

    @overload
    def e2m1_scale(self, x: TensorView, /) -> TensorView:
        """Return arg / 6 in Float, of magnitudes of at most 3000: the scale with which the largest of a block becomes the largest number of Float4_e2m1fn."""
        ...
    @overload
    def e2m1_scale(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def e4m3_inverse(self, x: TensorView, /) -> TensorView:
        """Return 1 / arg in Float, of scales of Float8_e4m3fn; the largest finite number where a scale is 0 or NaN."""
        ...
    @overload
    def e4m3_inverse(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def e8m0_inverse(self, x: TensorView, /) -> TensorView:
        """Return 1 / arg in Float, of scales of Float8_e8m0fnu."""
        ...
    @overload
    def e8m0_inverse(self, x: Scalar | Number, /) -> Scalar: ...

    def elu(self, x: Operand, alpha: _float = ...) -> TensorView:
        """Return x above 0, else alpha * (exp(x) - 1): torch.nn.functional.elu."""
        ...

    def embedding_bwd(self, grad: Operand, index: TensorView | Scalar | _int, entries: Any) -> TensorView:
        """Return the gradient of a table of `entries` rows: the sums of the rows of grad that belong to each entry of index."""
        ...

    def embedding_fwd(self, input: Operand, weight: TensorView | None, padding_idx: Any = ..., max_norm: Any = ..., norm_type: Any = ..., scale_grad_by_freq: Any = ..., sparse: Any = ...) -> TensorView:
        """Return the rows of weight that input names. padding_idx, scale_grad_by_freq and sparse change gradients only."""
        ...

    @overload
    def eq(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return eq(a, b), elementwise."""
        ...
    @overload
    def eq(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def eq(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    @overload
    def erf(self, x: TensorView, /) -> TensorView:
        """Return erf(x), elementwise."""
        ...
    @overload
    def erf(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def erfc(self, x: TensorView, /) -> TensorView:
        """Return erfc(x), elementwise."""
        ...
    @overload
    def erfc(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def erfcinv(self, x: TensorView, /) -> TensorView:
        """Return erfcinv(x), elementwise."""
        ...
    @overload
    def erfcinv(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def erfinv(self, x: TensorView, /) -> TensorView:
        """Return erfinv(x), elementwise."""
        ...
    @overload
    def erfinv(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def exp(self, x: TensorView, /) -> TensorView:
        """Return exp(x), elementwise."""
        ...
    @overload
    def exp(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def exp2(self, x: TensorView, /) -> TensorView:
        """Return exp2(x), elementwise."""
        ...
    @overload
    def exp2(self, x: Scalar | Number, /) -> Scalar: ...

    def expand(self, arg: TensorView, shape: Sequence[_int | Scalar]) -> TensorView:
        """Return arg with its axes of extent 1 expanded to shape (-1 keeps an axis)."""
        ...

    @overload
    def expm1(self, x: TensorView, /) -> TensorView:
        """Return expm1(x), elementwise."""
        ...
    @overload
    def expm1(self, x: Scalar | Number, /) -> Scalar: ...

    def flatten(self, x: Operand, start_dim: _int = ..., end_dim: _int = ...) -> TensorView:
        """Return x with the axes from start_dim to end_dim merged: torch.flatten."""
        ...

    @overload
    def floor(self, x: TensorView, /) -> TensorView:
        """Return floor(x), elementwise."""
        ...
    @overload
    def floor(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def fmod(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return fmod(a, b), elementwise."""
        ...
    @overload
    def fmod(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def fmod(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    @overload
    def frac(self, x: TensorView, /) -> TensorView:
        """Return frac(x), elementwise."""
        ...
    @overload
    def frac(self, x: Scalar | Number, /) -> Scalar: ...

    def full(self, shape: Sequence[_int | Scalar], fill_value: Operand, dtype: DType) -> TensorView:
        """Return a tensor of shape filled with fill_value."""
        ...

    def full_like(self, x: Operand, fill_value: Operand, dtype: DType | None = ...) -> TensorView:
        """Return a tensor of fill_value of the shape of x: torch.full_like."""
        ...

    def gather(self, arg: TensorView, index: TensorView | Scalar | _int, dim: _int) -> TensorView:
        """Return arg at positions index along dim, in the shape of index."""
        ...

    @overload
    def gcd(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return gcd(a, b), elementwise."""
        ...
    @overload
    def gcd(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def gcd(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    @overload
    def ge(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return ge(a, b), elementwise."""
        ...
    @overload
    def ge(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def ge(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    def geglu(self, a: Operand, b: Operand) -> TensorView:
        """Return gelu(a) * b, gelu by tanh."""
        ...

    def geglu_exact(self, a: Operand, b: Operand) -> TensorView:
        """Return gelu(a) * b, gelu by erf."""
        ...

    def gelu(self, x: Operand, approximate: _str = ...) -> TensorView:
        """Return x times the normal distribution's function at x: torch.nn.functional.gelu."""
        ...

    def grouped_mm(self, mat1: Operand, mat2: Operand, offsets: Any, scale1: Operand | None = ..., scale2: Operand | None = ..., alpha: Any = ..., bias: TensorView | None = ..., beta: _float | None = ..., dtype: DType = ..., output_block_scale_size: _int = ..., output_block_scale_dtype: DType = ..., output_gamma: _bool = ...) -> Any:
        """Return products of groups that end at offsets; with scales also two Nones, for scales of the result, which it has none of."""
        ...

    def grouped_tiles(self, arg: TensorView, input_offsets: Operand, output_offsets: Operand, block_size: _int = ...) -> TensorView:
        """Return the first element of each block of block_size neighbours as scales of groups of rows, see `preprocess_grouped_matmul_input_sf`."""
        ...

    @overload
    def gt(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return gt(a, b), elementwise."""
        ...
    @overload
    def gt(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def gt(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    def hardshrink(self, x: Operand, lambd: _float = ...) -> TensorView:
        """Return x where |x| > lambd, else 0: torch.nn.functional.hardshrink."""
        ...

    def hardsigmoid(self, x: Operand) -> TensorView:
        """Return x + 3 limited to 0 .. 6, over 6: torch.nn.functional.hardsigmoid."""
        ...

    def hardswish(self, x: Operand) -> TensorView:
        """Return x * hardsigmoid(x): torch.nn.functional.hardswish."""
        ...

    def hardtanh(self, x: Operand, min_val: _float = ..., max_val: _float = ...) -> TensorView:
        """Return x limited to min_val .. max_val: torch.nn.functional.hardtanh."""
        ...

    def huber_loss(self, x: Operand, target: TensorView, reduction: _str = ..., delta: _float = ...) -> TensorView:
        """Return the squared difference below delta, else a line of that slope: torch.nn.functional.huber_loss."""
        ...

    @overload
    def hypot(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return the square root of a * a + b * b, whose squares may overflow: torch.hypot."""
        ...
    @overload
    def hypot(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def hypot(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    @overload
    def imag(self, x: TensorView, /) -> TensorView:
        """Return the imaginary parts of x, which is complex."""
        ...
    @overload
    def imag(self, x: Scalar | Number, /) -> Scalar: ...

    def index_select(self, arg: TensorView, index: TensorView | Scalar | _int, dim: _int) -> TensorView:
        """Return the entries of arg along dim that index, of one axis, names."""
        ...

    def instance_norm(self, x: Operand, weight: TensorView | None = ..., bias: TensorView | None = ..., eps: _float | None = ...) -> TensorView:
        """Return x normalized over all axes behind the channels (axis 1), per sample: torch.nn.functional.instance_norm with statistics of the input."""
        ...

    def iota(self, length: _int | Scalar, start: Operand | None = ..., step: Operand | None = ..., dtype: DType = ...) -> TensorView:
        """Return start + step * i for i below length."""
        ...

    @overload
    def isfinite(self, x: TensorView, /) -> TensorView:
        """Return isfinite(x), elementwise."""
        ...
    @overload
    def isfinite(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def isinf(self, x: TensorView, /) -> TensorView:
        """Return isinf(x), elementwise."""
        ...
    @overload
    def isinf(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def isnan(self, x: TensorView, /) -> TensorView:
        """Return isnan(x), elementwise."""
        ...
    @overload
    def isnan(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def isneginf(self, x: TensorView, /) -> TensorView:
        """Return isneginf(x), elementwise."""
        ...
    @overload
    def isneginf(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def isposinf(self, x: TensorView, /) -> TensorView:
        """Return isposinf(x), elementwise."""
        ...
    @overload
    def isposinf(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def isreal(self, x: TensorView, /) -> TensorView:
        """Return isreal(x), elementwise."""
        ...
    @overload
    def isreal(self, x: Scalar | Number, /) -> Scalar: ...

    def kl_div(self, x: Operand, target: TensorView, reduction: _str = ..., log_target: _bool = ...) -> TensorView:
        """Return target * (log(target) - x): torch.nn.functional.kl_div; reduction may be "batchmean", too."""
        ...

    def l1_loss(self, x: Operand, target: TensorView, reduction: _str = ...) -> TensorView:
        """Return the absolute difference: torch.nn.functional.l1_loss."""
        ...

    def layer_norm(self, x: Operand, normalized_shape: _int | Sequence[_int | Scalar], weight: TensorView | None = ..., bias: TensorView | None = ..., eps: _float | None = ...) -> TensorView:
        """Return (x - mean) / sqrt(variance + eps) * weight + bias over the last axes: torch.nn.functional.layer_norm."""
        ...

    @overload
    def le(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return le(a, b), elementwise."""
        ...
    @overload
    def le(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def le(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    def leaky_relu(self, x: Operand, negative_slope: _float = ...) -> TensorView:
        """Return x above 0, else x * negative_slope: torch.nn.functional.leaky_relu."""
        ...

    def lerp(self, start: Operand, end: Operand, weight: TensorView | None, /) -> TensorView:
        """Return start + weight * (end - start)."""
        ...

    @overload
    def lgamma(self, x: TensorView, /) -> TensorView:
        """Return lgamma(x), elementwise."""
        ...
    @overload
    def lgamma(self, x: Scalar | Number, /) -> Scalar: ...

    def linear(self, arg1: TensorView, arg2: TensorView, bias: TensorView | None = ...) -> TensorView:
        """Return arg1 @ arg2.T + bias."""
        ...

    def linear_recurrence(self, gate: Operand, x: Operand, dim: _int, reverse: _bool = ...) -> TensorView:
        """Return y with y[k] = gate[k] * y[k-1] + x[k] along dim, from 0 on; with reverse y[k] = gate[k] * y[k+1] + x[k], from the last element on. gate and x"""
        ...

    @overload
    def log(self, x: TensorView, /) -> TensorView:
        """Return log(x), elementwise."""
        ...
    @overload
    def log(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def log10(self, x: TensorView, /) -> TensorView:
        """Return log10(x), elementwise."""
        ...
    @overload
    def log10(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def log1p(self, x: TensorView, /) -> TensorView:
        """Return log1p(x), elementwise."""
        ...
    @overload
    def log1p(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def log2(self, x: TensorView, /) -> TensorView:
        """Return log2(x), elementwise."""
        ...
    @overload
    def log2(self, x: Scalar | Number, /) -> Scalar: ...

    def log_softmax(self, x: Operand, dim: _int = ..., dtype: DType | None = ...) -> TensorView:
        """Return log(softmax(x, dim)), computed from x - max: torch.log_softmax."""
        ...

    @overload
    def logaddexp(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return log(exp(a) + exp(b)): torch.logaddexp."""
        ...
    @overload
    def logaddexp(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def logaddexp(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    def logcumsumexp(self, arg: TensorView, dim: _int, init: Any = ...) -> TensorView:
        """Return the running logsumexp of arg along dim, from init on."""
        ...

    @overload
    def logical_and(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return logical_and(a, b), elementwise."""
        ...
    @overload
    def logical_and(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def logical_and(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    @overload
    def logical_not(self, x: TensorView, /) -> TensorView:
        """Return logical_not(x), elementwise."""
        ...
    @overload
    def logical_not(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def logical_or(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return logical_or(a, b), elementwise."""
        ...
    @overload
    def logical_or(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def logical_or(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    @overload
    def logical_right_shift(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return logical_right_shift(a, b), elementwise."""
        ...
    @overload
    def logical_right_shift(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def logical_right_shift(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    def logsigmoid(self, x: Operand) -> TensorView:
        """Return log(sigmoid(x)): torch.nn.functional.logsigmoid."""
        ...

    def logsumexp(self, x: Operand, dims: _int | Sequence[_int] | None, keepdim: _bool = ...) -> TensorView:
        """Return log(sum(exp(x))) over dims: torch.logsumexp, -inf for a row of -inf."""
        ...

    @overload
    def lt(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return lt(a, b), elementwise."""
        ...
    @overload
    def lt(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def lt(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    @overload
    def magnitude(self, x: TensorView, /) -> TensorView:
        """Return the magnitude of arg, of type Float; 0 where it is NaN."""
        ...
    @overload
    def magnitude(self, x: Scalar | Number, /) -> Scalar: ...

    def masked_fill(self, x: Operand, mask: TensorView, value: Operand) -> TensorView:
        """Return value where mask holds, else x: torch.masked_fill."""
        ...

    def matmul(self, arg1: TensorView, arg2: TensorView) -> TensorView:
        """Return the matrix product of two tensors, as torch.matmul."""
        ...

    def max(self, arg: TensorView, dims: _int | Sequence[_int] | None = ..., keepdim: _bool = ..., dtype: DType = ...) -> TensorView:
        """max(arg, dtype=Null) over all axes, or max(arg, dim or dims, keepdim=False, dtype=Null)."""
        ...

    @overload
    def maximum(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return maximum(a, b), elementwise."""
        ...
    @overload
    def maximum(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def maximum(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    def mean(self, x: Operand, dims: _int | Sequence[_int] | None = ..., keepdim: _bool = ..., dtype: DType | None = ...) -> TensorView:
        """Return the mean over dims, all axes unless given: torch.mean."""
        ...

    def min(self, arg: TensorView, dims: _int | Sequence[_int] | None = ..., keepdim: _bool = ..., dtype: DType = ...) -> TensorView:
        """min(arg, dtype=Null) over all axes, or min(arg, dim or dims, keepdim=False, dtype=Null)."""
        ...

    @overload
    def minimum(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return minimum(a, b), elementwise."""
        ...
    @overload
    def minimum(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def minimum(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    def mish(self, x: Operand) -> TensorView:
        """Return x * tanh(softplus(x)): torch.nn.functional.mish."""
        ...

    @overload
    def mod(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return mod(a, b), elementwise."""
        ...
    @overload
    def mod(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def mod(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    def mse_loss(self, x: Operand, target: TensorView, reduction: _str = ...) -> TensorView:
        """Return the squared difference: torch.nn.functional.mse_loss."""
        ...

    @overload
    def mul(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return mul(a, b), elementwise."""
        ...
    @overload
    def mul(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def mul(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    @overload
    def ne(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return ne(a, b), elementwise."""
        ...
    @overload
    def ne(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def ne(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    @overload
    def neg(self, x: TensorView, /) -> TensorView:
        """Return neg(x), elementwise."""
        ...
    @overload
    def neg(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def nextafter(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return nextafter(a, b), elementwise."""
        ...
    @overload
    def nextafter(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def nextafter(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    def norm(self, x: Operand, p: _float = ..., dims: _int | Sequence[_int] | None = ..., keepdim: _bool = ...) -> TensorView:
        """Return the p-norm over dims: torch.linalg.vector_norm for p 1, 2, inf and other numbers above 0."""
        ...

    def normal(self, mean: Operand, std: Operand, shape: Sequence[_int | Scalar], *, rng_seed: Any = ..., rng_offset: Any = ..., dtype: DType = ...) -> TensorView:
        """Return normal numbers of this mean and standard deviation."""
        ...

    def normalize(self, x: Operand, p: _float = ..., dim: _int = ..., eps: _float | None = ...) -> TensorView:
        """Return x over its p-norm along dim, the norm being at least eps: torch.nn.functional.normalize."""
        ...

    def nv_block_quantize(self, input: Operand, global_scale: Any = ..., swizzle_block_scales: _bool = ..., block_size: _int = ..., dtype: DType = ...) -> Any:
        """Return (quantized, block_scales) of blocks of the last axis: NVFP4 (Float4_e2m1fn in blocks of 16) or MXFP8 (Float8_e4m3fn in blocks of 32)."""
        ...

    def nv_grouped_block_quantize(self, input: Operand, input_offsets: Operand, output_offsets: Operand, global_scale: Any = ..., block_size: _int = ..., dtype: DType = ...) -> Any:
        """Return (quantized, block_scales) of groups of rows: NVFP4, the scales of each group in tiles of their own, from row output_offsets[group] on."""
        ...

    def ones(self, shape: Sequence[_int | Scalar], dtype: DType = ...) -> TensorView:
        """Return a tensor of ones: torch.ones."""
        ...

    def ones_like(self, x: Operand, dtype: DType | None = ...) -> TensorView:
        """Return a tensor of 1 of the shape of x: torch.ones_like."""
        ...

    def pad(self, arg: TensorView, pad_widths: Sequence[_int | Scalar], value: Operand | None = ...) -> TensorView:
        """Return arg with new elements around it: pad_widths has two widths per axis, innermost axis first; negative ones crop."""
        ...

    def permute(self, arg: TensorView, dims: Sequence[_int]) -> TensorView:
        """Return arg with axis dims[i] of it at position i."""
        ...

    @overload
    def pow(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return pow(a, b), elementwise."""
        ...
    @overload
    def pow(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def pow(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    def preprocess_grouped_matmul_input_sf(self, input: Operand, input_offsets: Operand, output_offsets: Operand) -> TensorView:
        """Return scales [m, c] of groups of rows in tiles of 128 x 4, each group's from row output_offsets[group] on, padded with zeros."""
        ...

    def prod(self, arg: TensorView, dims: _int | Sequence[_int] | None = ..., keepdim: _bool = ..., dtype: DType = ...) -> TensorView:
        """prod(arg, dtype=Null) over all axes, or prod(arg, dim or dims, keepdim=False, dtype=Null)."""
        ...

    def rand_like(self, x: Operand, /) -> TensorView:
        """Return numbers uniform in [0, 1) of the shape and type of x."""
        ...

    def randn_like(self, x: Operand, /) -> TensorView:
        """Return standard normal numbers of the shape and type of x."""
        ...

    @overload
    def real(self, x: TensorView, /) -> TensorView:
        """Return real(x), elementwise."""
        ...
    @overload
    def real(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def reciprocal(self, x: TensorView, /) -> TensorView:
        """Return reciprocal(x), elementwise."""
        ...
    @overload
    def reciprocal(self, x: Scalar | Number, /) -> Scalar: ...

    def reglu(self, a: Operand, b: Operand) -> TensorView:
        """Return relu(a) * b."""
        ...

    @overload
    def relu(self, x: TensorView, /) -> TensorView:
        """Return relu(x), elementwise."""
        ...
    @overload
    def relu(self, x: Scalar | Number, /) -> Scalar: ...

    def relu6(self, x: Operand) -> TensorView:
        """Return x limited to 0 .. 6: torch.nn.functional.relu6."""
        ...

    @overload
    def remainder(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return remainder(a, b), elementwise."""
        ...
    @overload
    def remainder(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def remainder(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    def reshape(self, arg: TensorView, new_shape: Sequence[_int | Scalar]) -> TensorView:
        """Return arg under new_shape, in row-major order; one size may be -1."""
        ...

    def rms_norm(self, x: Operand, normalized_shape: _int | Sequence[_int | Scalar], weight: TensorView | None = ..., eps: _float | None = ...) -> TensorView:
        """Return x / sqrt(mean of squares + eps) * weight over the last axes: torch.nn.functional.rms_norm. eps None: that of the type computed in."""
        ...

    @overload
    def round(self, x: TensorView, /) -> TensorView:
        """Return round(x), elementwise."""
        ...
    @overload
    def round(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def rounded_mul(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return a * b, rounded before it is added to anything, so that its bits are the same in every kernel: torch.mul."""
        ...
    @overload
    def rounded_mul(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def rounded_mul(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    @overload
    def rsqrt(self, x: TensorView, /) -> TensorView:
        """Return rsqrt(x), elementwise."""
        ...
    @overload
    def rsqrt(self, x: Scalar | Number, /) -> Scalar: ...

    def scaled_mm(self, mat1: Operand, mat2: Operand, scale1: Operand, scale2: Operand, alpha: Any = ..., bias: TensorView | None = ..., beta: _float | None = ..., dtype: DType = ..., output_block_scale_size: _int = ..., output_block_scale_dtype: DType = ..., output_gamma: _bool = ...) -> Any:
        """Return (product of two matrices with scales, None, None)."""
        ...

    def scatter(self, arg: TensorView, index: TensorView | Scalar | _int, src: Operand, dim: _int) -> TensorView:
        """Return a copy of arg with the elements of src, or the scalar src, at positions index along dim."""
        ...

    def scatter_add(self, arg: TensorView, index: TensorView | Scalar | _int, src: Operand, dim: _int) -> TensorView:
        """Return a copy of arg to which the elements of src are added at positions index along dim, as torch.scatter_add."""
        ...

    def scatter_rows(self, arg: TensorView, index: TensorView | Scalar | _int, src: Operand, dim: _int, kind: _str = ..., skip: _bool = ..., axes: _int = ...) -> TensorView:
        """Return a copy of arg, of shape [A..., n, R...] with n at dim, into which the rows of src [A..., P..., R...] are combined by kind ("sum", "max", "min"; or"""
        ...

    def sdpfa_bwd(self, grad_output: Operand, query: TensorView, key: TensorView, value: Operand, output: Operand, logsumexp: Operand, dropout_p: Any, is_causal: Any, philox_seed: Operand, philox_offset: Operand, scale: Any) -> Any:
        """Return the gradients of query, key and value."""
        ...

    def sdpfa_fwd(self, query: TensorView, key: TensorView, value: Operand, bias: TensorView | None = ..., mask: TensorView | None = ..., dropout_p: Any = ..., is_causal: Any = ..., scale: Any = ...) -> Any:
        """Return (output, logsumexp, philox_seed, philox_offset) of scaled dot product attention."""
        ...

    def segment_set(self, x: Operand, /) -> TensorView:
        """Return a copy of x; what reads it runs in another kernel."""
        ...

    def select(self, arg: TensorView, index: TensorView | Scalar | _int, dim: _int) -> TensorView:
        """Return arg at one index along dim, without that axis."""
        ...

    def selu(self, x: Operand) -> TensorView:
        """Return elu with the constants of self-normalizing networks: torch.nn.functional.selu."""
        ...

    def set(self, x: Operand, /) -> TensorView:
        """Return a copy of x."""
        ...

    def shape(self, arg: TensorView) -> list[Scalar]:
        """Return the extents of all axes."""
        ...

    @overload
    def sigmoid(self, x: TensorView, /) -> TensorView:
        """Return sigmoid(x), elementwise."""
        ...
    @overload
    def sigmoid(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def sign(self, x: TensorView, /) -> TensorView:
        """Return -1, 0 or 1, in the type of x."""
        ...
    @overload
    def sign(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def signbit(self, x: TensorView, /) -> TensorView:
        """Return signbit(x), elementwise."""
        ...
    @overload
    def signbit(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def silu(self, x: TensorView, /) -> TensorView:
        """Return silu(x), elementwise."""
        ...
    @overload
    def silu(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def sin(self, x: TensorView, /) -> TensorView:
        """Return sin(x), elementwise."""
        ...
    @overload
    def sin(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def sinh(self, x: TensorView, /) -> TensorView:
        """Return sinh(x), elementwise."""
        ...
    @overload
    def sinh(self, x: Scalar | Number, /) -> Scalar: ...

    def size(self, arg: TensorView, dim: _int) -> Scalar:
        """Return the extent of axis dim."""
        ...

    def slice(self, arg: TensorView, start_indices: Sequence[_int | Scalar], end_indices: Sequence[_int | Scalar], strides: Sequence[_int] | None = ..., manual_normalization: _bool = ...) -> TensorView:
        """Return arg from start_indices to end_indices; strides are all 1. manual_normalization: 0 <= start <= end <= size is promised."""
        ...

    def smooth_l1_loss(self, x: Operand, target: TensorView, reduction: _str = ..., beta: _float = ...) -> TensorView:
        """Return the squared difference below beta, else the absolute one: torch.nn.functional.smooth_l1_loss."""
        ...

    def softmax(self, x: Operand, dim: _int = ..., dtype: DType | None = ...) -> TensorView:
        """Return exp(x) over its sum along dim: torch.softmax. dtype: the result's, x's own unless given."""
        ...

    def softmin(self, x: Operand, dim: _int = ..., dtype: DType | None = ...) -> TensorView:
        """Return softmax(-x, dim)."""
        ...

    def softplus(self, x: Operand, beta: _float = ..., threshold: _float = ...) -> TensorView:
        """Return log(1 + exp(beta x)) / beta, x itself above the threshold: torch.nn.functional.softplus."""
        ...

    def softshrink(self, x: Operand, lambd: _float = ...) -> TensorView:
        """Return x moved towards 0 by lambd: torch.nn.functional.softshrink."""
        ...

    def softsign(self, x: Operand) -> TensorView:
        """Return x / (1 + |x|): torch.nn.functional.softsign."""
        ...

    @overload
    def sqrt(self, x: TensorView, /) -> TensorView:
        """Return sqrt(x), elementwise."""
        ...
    @overload
    def sqrt(self, x: Scalar | Number, /) -> Scalar: ...

    def square(self, x: Operand) -> TensorView:
        """Return x * x: torch.nn.functional.square."""
        ...

    def squeeze(self, arg: TensorView, dims: Sequence[_int], squeeze_expanded: _bool = ...) -> TensorView:
        """Return arg without the axes dims, which have extent 1."""
        ...

    def std(self, x: Operand, dims: _int | Sequence[_int] | None = ..., correction: _float = ..., keepdim: _bool = ...) -> TensorView:
        """Return the standard deviation over dims: torch.std."""
        ...

    def stride_order(self, arg: TensorView, stride_order: Sequence[_int]) -> TensorView:
        """Return arg with a memory layout: stride_order[i] counts axis i's place from the innermost (0)."""
        ...

    @overload
    def sub(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return sub(a, b), elementwise."""
        ...
    @overload
    def sub(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def sub(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    def sum(self, arg: TensorView, dims: _int | Sequence[_int] | None = ..., keepdim: _bool = ..., dtype: DType = ...) -> TensorView:
        """sum(arg, dtype=Null) over all axes, or sum(arg, dim or dims, keepdim=False, dtype=Null)."""
        ...

    def swiglu(self, a: Operand, b: Operand) -> TensorView:
        """Return silu(a) * b."""
        ...

    def take_along_axis(self, arg: TensorView, index: TensorView | Scalar | _int, dim: _int) -> TensorView:
        """Return arg at positions index along dim; the other axes are broadcast to each other."""
        ...

    @overload
    def tan(self, x: TensorView, /) -> TensorView:
        """Return tan(x), elementwise."""
        ...
    @overload
    def tan(self, x: Scalar | Number, /) -> Scalar: ...

    @overload
    def tanh(self, x: TensorView, /) -> TensorView:
        """Return tanh(x), elementwise."""
        ...
    @overload
    def tanh(self, x: Scalar | Number, /) -> Scalar: ...

    def tanhshrink(self, x: Operand) -> TensorView:
        """Return x - tanh(x): torch.nn.functional.tanhshrink."""
        ...

    def threshold(self, x: Operand, limit: _float, value: Operand, /) -> TensorView:
        """Return x where it is above limit, else value."""
        ...

    def topk(self, arg: TensorView, k: _int, dim: _int = ..., largest: _bool = ..., sorted: _bool = ...) -> Any:
        """Return the k largest (or smallest) values of arg along dim, and their positions."""
        ...

    def transpose(self, x: Operand, dim0: _int, dim1: _int) -> TensorView:
        """Return x with two axes exchanged: torch.transpose."""
        ...

    @overload
    def trigamma(self, x: TensorView, /) -> TensorView:
        """Return the second derivative of lgamma at x: torch.polygamma(1, x)."""
        ...
    @overload
    def trigamma(self, x: Scalar | Number, /) -> Scalar: ...

    def triu(self, arg: TensorView, diagonal: _int = ...) -> TensorView:
        """Return arg with zeros where column - row < diagonal."""
        ...

    @overload
    def truediv(self, a: TensorView, b: Operand, /) -> TensorView:
        """Return truediv(a, b), elementwise."""
        ...
    @overload
    def truediv(self, a: Scalar | Number, b: TensorView, /) -> TensorView: ...
    @overload
    def truediv(self, a: Scalar | Number, b: Scalar | Number, /) -> Scalar: ...

    @overload
    def trunc(self, x: TensorView, /) -> TensorView:
        """Return trunc(x), elementwise."""
        ...
    @overload
    def trunc(self, x: Scalar | Number, /) -> Scalar: ...

    def uniform(self, minval: Operand, maxval: Operand, shape: Sequence[_int | Scalar], *, rng_seed: Any = ..., rng_offset: Any = ..., dtype: DType = ...) -> TensorView:
        """Return numbers uniform in [minval, maxval)."""
        ...

    def unsqueeze(self, x: Operand, dim: _int) -> TensorView:
        """Return x with a new axis of extent 1 at dim: torch.unsqueeze."""
        ...

    def var(self, arg: TensorView, dims: Sequence[_int], correction: _float = ..., keepdim: _bool = ...) -> TensorView:
        """Return the variance over dims."""
        ...

    def var_mean(self, arg: TensorView, dims: Sequence[_int], correction: _float = ..., keepdim: _bool = ...) -> tuple[TensorView, TensorView]:
        """Return (variance, mean) over dims."""
        ...

    def view(self, x: Operand, shape: Sequence[_int | Scalar]) -> TensorView:
        """Return x under another shape: torch.Tensor.view (ops.reshape)."""
        ...

    def welford(self, arg: TensorView, dims: Sequence[_int]) -> tuple[TensorView, TensorView, TensorView]:
        """Return (average, sum of squared deviations, count) over dims."""
        ...

    def where(self, condition: Operand, a: Operand, b: Operand, /) -> TensorView:
        """Return a where condition holds, else b."""
        ...

    def zeros(self, shape: Sequence[_int | Scalar], dtype: DType = ...) -> TensorView:
        """Return a tensor of zeros: torch.zeros."""
        ...

    def zeros_like(self, x: Operand, dtype: DType | None = ...) -> TensorView:
        """Return a tensor of 0 of the shape of x: torch.zeros_like."""
        ...

ops: OpNames
