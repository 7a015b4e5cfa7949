"""Lines of nvFuser's surface that no other test has: names of arguments, options, scalars, products, attention, declarations, views in one definition.

Read first: the table in front of each test.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fixture import DEVICE, run, same

from weft import DataType as D
from weft import FusionDefinition

NAMES = """
max min prod sum: arg dims keepdim dtype
var var_mean: arg dims correction keepdim
welford: arg dims
cumsum cumprod cummin cummax: arg dim init
cast: arg dtype
triu: arg diagonal
matmul: arg1 arg2
linear: arg1 arg2 bias
grouped_mm: mat1 mat2 offsets scale1 scale2 alpha bias beta dtype output_block_scale_size output_block_scale_dtype output_gamma
scaled_mm: mat1 mat2 scale1 scale2 alpha bias beta dtype output_block_scale_size output_block_scale_dtype output_gamma
broadcast: arg is_broadcast_dim
broadcast_in_dim: arg shape broadcast_dims
reshape: arg new_shape
permute: arg dims
expand: arg shape
squeeze: arg dims squeeze_expanded
slice: arg start_indices end_indices strides manual_normalization
size: arg dim
shape: arg
stride_order: arg stride_order
index_select select gather take_along_axis: arg index dim
scatter: arg index src dim
pad: arg pad_widths value
cat: tensors dim manual_padding
embedding_fwd: input weight padding_idx max_norm norm_type scale_grad_by_freq sparse
preprocess_grouped_matmul_input_sf: input input_offsets output_offsets
iota: length start step dtype
full: shape fill_value dtype
normal: mean std shape rng_seed rng_offset dtype
uniform: minval maxval shape rng_seed rng_offset dtype
topk: arg k dim largest sorted
argsort: arg dim descending stable
sdpfa_fwd: query key value bias mask dropout_p is_causal scale
sdpfa_bwd: grad_output query key value output logsumexp dropout_p is_causal philox_seed philox_offset scale
nv_block_quantize: input global_scale swizzle_block_scales block_size dtype
nv_grouped_block_quantize: input input_offsets output_offsets global_scale block_size dtype
"""
POSITIONAL = (
    "abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf erfc erfcinv erfinv exp exp2 expm1 floor frac imag isfinite isinf isnan isneginf "
    "isposinf isreal lgamma log log10 log1p log2 logical_not neg rand_like randn_like real reciprocal relu round rsqrt segment_set set sigmoid sign signbit silu "
    "sin sinh sqrt tan tanh trunc add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor div eq fmod gcd ge gt le logical_and "
    "logical_or logical_right_shift lt maximum minimum mod mul ne nextafter pow remainder sub truediv complex lerp where clamp threshold addcmul"
)


def test_every_op_has_nvfusers_names_of_arguments() -> None:
    """In nvFuser's order, with its own behind; 134 names with the one that is refused (cutlass_nvfp4_grouped_mm)."""
    with FusionDefinition() as fd:
        count = 1 + len(POSITIONAL.split())
        for line in NAMES.strip().splitlines():
            ops, _, names = line.partition(": ")
            for op in ops.split():
                count += 1
                assert list(inspect.signature(getattr(fd.ops, op)).parameters)[: len(names.split())] == names.split(), op
        for op in POSITIONAL.split():
            assert {p.kind for p in inspect.signature(getattr(fd.ops, op)).parameters.values()} == {inspect.Parameter.POSITIONAL_ONLY}, op
    assert count == 134


ENABLE = (
    "fuse_matmul fuse_multiple_matmuls id_model_extra_validation io_to_lower_precision kernel_db kernel_debug kernel_lineinfo kernel_profile memory_promotion "
    "reuse_zeroed_memory static_fusion_count warn_register_spill tma_pointwise tma_inner_persistent tma_reduction ws_normalization host_ir_lowering host_ir_jit "
    "insert_resharding_after fast_math cutlass_scheduler p2p_protocol p2p_transport multicast_protocol"
).split()
DISABLE = (
    "compile_to_sass contig_indexing expr_simplify fallback fma greedy_scheduler grouped_grid_welford_outer_opt index_hoist magic_zero matmul_expr_eval "
    "nvrtc_caching nvtx parallel_compile predicate_elimination python_inline_definitions kernel_reuse var_name_remapping welford_vectorization resize_scheduler "
    "reuse_mismatched_type_registers multidevice infer_contiguity"
).split()


def test_every_option_is_known_in_a_call_and_does_not_leak() -> None:
    x = torch.randn(3, 4, device=DEVICE)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.from_pytorch(x)))
    for options in ({"_enable_options": ENABLE}, {"_disable_options": DISABLE}, {}):
        assert torch.equal(fd.execute([x], **options)[0], -x)


# ---------------------------------------------------------------- scalars
Two = Callable[[Any, Any], Any]
OF_TWO: dict[str, Two] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: int(a / b), "truediv": lambda a, b: a / b,
    "mod": math.fmod, "fmod": math.fmod, "remainder": lambda a, b: a % b, "pow": lambda a, b: a**b, "maximum": max, "minimum": min, "gcd": math.gcd,
    "bitwise_and": lambda a, b: a & b, "bitwise_or": lambda a, b: a | b, "bitwise_xor": lambda a, b: a ^ b, "bitwise_left_shift": lambda a, b: a << b,
    "bitwise_right_shift": lambda a, b: a >> b, "logical_right_shift": lambda a, b: (a % 2**64) >> b, "atan2": math.atan2, "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "ge": lambda a, b: a >= b, "logical_and": lambda a, b: bool(a and b), "logical_or": lambda a, b: bool(a or b),
}  # fmt: skip
OF_ONE = (
    "abs ceil cos exp floor log neg reciprocal round rsqrt sin sqrt tanh sigmoid sign trunc frac relu erf lgamma isnan isfinite logical_not log1p expm1 exp2 log2 "
    "log10 atan sinh cosh silu erfc"
).split()


def test_scalars_have_every_op() -> None:
    """Two scalar inputs, a scalar input beside a constant, and ops of one operand; each value is one element of the result."""
    wanted: list[Any] = []
    for op, function in OF_TWO.items():
        wanted += [0 if "shift" in op or op == "pow" else function(7, -3), function(-3, 2)]  # integers to negative powers, shifts by negative numbers: 0
    t = torch.tensor(0.625, dtype=torch.float64)
    wanted += [(getattr(torch, op, None) or getattr(F, op))(t).item() for op in OF_ONE] + [7, -3, 0]

    def define(fd: FusionDefinition) -> None:
        o = fd.ops
        a, b, c = fd.define_scalar(D.Int), fd.define_scalar(D.Int), fd.define_scalar(D.Double)
        values = [made for op in OF_TWO for made in (getattr(o, op)(a, b), getattr(o, op)(b, 2))]
        values += [getattr(o, op)(c) for op in OF_ONE] + [o.where(o.gt(a, b), a, b), o.cast(b, D.Double), o.clamp(b, 0, 1)]
        place, out = o.iota(len(values)), o.full([len(values)], 0.0, D.Double)
        for index, value in enumerate(values):
            out = o.where(o.eq(place, index), o.cast(value, D.Double), out)
        fd.add_output(out)

    (out,) = run(define, [7, -3, 0.625], is_new=None)
    for name, got, want in zip([n for op in OF_TWO for n in (op, f"{op} 2")] + OF_ONE + ["where", "cast", "clamp"], out.tolist(), wanted, strict=True):
        assert got == pytest.approx(float(want), rel=1e-12, abs=1e-12), name


def test_scalars_of_every_type_beside_a_tensor() -> None:
    kinds = [D.Int, D.Int32, D.Index, D.UInt64, D.Double, D.Float, D.Half, D.BFloat16, D.Bool]
    values = [3, 3, 4, 4, 2.5, 1.5, 1.5, 0.5, True]
    x = torch.randn(4, device=DEVICE)

    def define(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        for kind, value in zip(kinds, values):
            fd.add_output(fd.ops.mul(t, fd.define_scalar(kind)))
            fd.add_output(fd.ops.mul(t, fd.define_scalar(value, kind)))

    for got, value in zip(run(define, [x, *values], is_new=None), [v for v in values for _ in range(2)], strict=True):
        same(got, x * value)


# ---------------------------------------------------------------- what torch runs
SHAPES = [
    ((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 5)), ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (4,)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 6)),
    ((1, 4), (4, 1)), ((0, 4), (4, 3)), ((3, 0), (0, 5)), ((2, 3, 4), (1, 4, 5)),
]  # fmt: skip


def test_products_of_every_rank() -> None:
    """With neighbours of every number of axes; an order of the result that was asked for."""
    for left, right in SHAPES:
        a, b = torch.randn(left, device=DEVICE), torch.randn(right, device=DEVICE)
        (out,) = run(lambda fd: fd.add_output(fd.ops.matmul(fd.from_pytorch(a), fd.from_pytorch(b))), [a, b], is_new=None)  # noqa: B023
        same(out, a @ b, atol=1e-4, rtol=1e-4)
    a, b = torch.randn(2, 3, 4, device=DEVICE), torch.randn(2, 4, 5, device=DEVICE)
    for order in itertools.permutations(range(3)):
        perm = sorted(range(3), key=lambda axis: -order[axis])  # noqa: B023
        wanted = (a @ b).permute(perm).contiguous().permute([perm.index(axis) for axis in range(3)])
        (out,) = run(lambda fd: fd.add_output(fd.ops.stride_order(fd.ops.matmul(fd.from_pytorch(a), fd.from_pytorch(b)), list(order))), [a, b], is_new=None)  # noqa: B023
        same(out, wanted, atol=1e-4, rtol=1e-4)
        assert out.stride() == wanted.stride()


def test_embedding_with_every_mix_of_options() -> None:
    index, weight = torch.tensor([[1, 3, 9], [0, 3, 3]], device=DEVICE), torch.randn(10, 6, device=DEVICE)
    mixes = list(itertools.product((None, 3, -3), (None, 1e-3), (None, 1.0), (None, True), (None, False)))
    for padding, norm, kind, scaled, sparse in mixes:

        def define(fd: FusionDefinition) -> None:
            options = [None if v is None else fd.define_scalar(v) for v in (padding, norm, kind, scaled, sparse)]  # noqa: B023
            fd.add_output(fd.ops.embedding_fwd(fd.from_pytorch(index), fd.from_pytorch(weight), *options))

        with FusionDefinition() as fd:
            define(fd)
        wanted = F.embedding(index, weight.clone(), padding, norm, 2.0 if kind is None else kind, bool(scaled), bool(sparse))
        same(fd.execute([index, weight.clone()])[0], wanted)


@pytest.mark.parametrize("leading", [(2,), (2, 3)], ids=["4 axes", "5 axes"])
def test_attention_with_masks_and_biases(leading: tuple[int, ...]) -> None:
    dtype = torch.bfloat16
    q, k, v = (torch.randn(*leading, 4, n, 16, device=DEVICE).to(dtype) for n in (8, 12, 12))
    mask, bias = torch.rand(*leading, 4, 8, 12, device=DEVICE) > 0.3, torch.randn(*leading, 4, 8, 12, device=DEVICE).to(dtype)
    infinite = torch.where(mask, bias.float(), -math.inf)
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}), ({"is_causal": True}, {"is_causal": True}), ({"dropout_p": 0.0, "scale": 0.5}, {"scale": 0.5}), ({"mask": mask}, {"attn_mask": mask}),
        ({"bias": bias}, {"attn_mask": bias.float()}), ({"bias": bias, "mask": mask}, {"attn_mask": infinite}), ({"mask": mask[..., :1, :1, :]}, {"attn_mask": mask[..., :1, :1, :]}),
    ]  # fmt: skip
    for given, torchs in cases:
        tensors = [q, k, v, *(t for t in given.values() if isinstance(t, torch.Tensor))]
        if given.get("is_causal"):
            tensors[1:3] = [t[..., :8, :].contiguous() for t in (k, v)]
        with FusionDefinition() as fd:
            declared = [fd.from_pytorch(t) for t in tensors]
            later = iter(declared[3:])
            options = {name: next(later) if isinstance(value, torch.Tensor) else fd.define_scalar(value) for name, value in given.items()}
            fd.add_output(fd.ops.sdpfa_fwd(*declared[:3], **options)[0])
        wanted = F.scaled_dot_product_attention(*(t.float() for t in tensors[:3]), **torchs)
        torch.testing.assert_close(fd.execute(tensors)[0].float(), wanted, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("width", [6, 12, 20, 64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_attention_of_heads_of_any_size(dtype: torch.dtype, width: int) -> None:
    """Forward and backward; torch's flash attention by itself takes multiples of 8."""
    q, k, v, grad = (torch.randn(2, 3, 17, width, device=DEVICE).to(dtype) for _ in range(4))
    with FusionDefinition() as fd:
        tq, tk, tv, tg = (fd.from_pytorch(t) for t in (q, k, v, grad))
        out, sums, seed, offset = fd.ops.sdpfa_fwd(tq, tk, tv, is_causal=fd.define_scalar(True))
        for result in (out, *fd.ops.sdpfa_bwd(tg, tq, tk, tv, out, sums, fd.define_scalar(0.0), fd.define_scalar(True), seed, offset, None)):
            fd.add_output(result)
    wide = [t.double().requires_grad_() for t in (q, k, v)]
    wanted = F.scaled_dot_product_attention(*wide, is_causal=True)
    wanted.backward(grad.double())
    for got, expected in zip(fd.execute([q, k, v, grad]), [wanted, *(t.grad for t in wide)], strict=True):
        assert got.dtype is dtype and got.shape == expected.shape  # type: ignore[union-attr]
        torch.testing.assert_close(got.double(), expected, atol=3e-2, rtol=3e-2)


# ---------------------------------------------------------------- declarations
WRONG: dict[str, tuple[type[Exception], tuple[Any, ...], dict[str, Any]]] = {
    "one size": (TypeError, (5,), {}), "sizes with fractions": (TypeError, ([1.5],), {}), "sizes as text": (TypeError, (["a"],), {}),
    "contiguity as text": (TypeError, ([2], "a"), {}), "a type as text": (TypeError, ([2], True, "float"), {}), "a type as a number": (TypeError, ([2], True, 3), {}),
    "an unknown keyword": (TypeError, ([2],), {"foo": 1}), "sizes alone": (TypeError, (), {"sizes": [2]}), "strides alone": (TypeError, (), {"strides": [2]}),
    "an order as text": (TypeError, ([2, 3], True), {"stride_order": ["a", 1]}), "an order of one number": (TypeError, ([2, 3], True), {"stride_order": 1}),
    "a place as text": (TypeError, ([], []), {"is_cpu": "a"}), "too few contiguities": (RuntimeError, ([2, 3], [True]), {}),
    "too few strides": (RuntimeError, (), {"sizes": [2, 3], "strides": [1]}), "a size below -1": (RuntimeError, ([-2],), {}),
    "too short an order": (RuntimeError, ([2, 3], True), {"stride_order": [0]}), "an order with one place twice": (RuntimeError, ([2, 3], True), {"stride_order": [0, 0]}),
    "an order beyond the rank": (RuntimeError, ([2, 3], True), {"stride_order": [0, -3]}), "a broadcast axis that is contiguous": (RuntimeError, ([1], [True]), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_declares_no_tensor(name: str) -> None:
    kind, arguments, keywords = WRONG[name]
    with FusionDefinition() as fd, pytest.raises(kind):
        fd.define_tensor(*arguments, **keywords)


# ---------------------------------------------------------------- views: many in one definition
X = torch.arange(12.0).reshape(3, 4)
VIEWS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], torch.Tensor]]] = {
    "to a torch.Size": (lambda o, x: o.exp(o.reshape(x, torch.Size([12]))), lambda x: x.reshape(12).exp()),
    "sizes of the tensor and -1": (lambda o, x: o.neg(o.reshape(x, [x.size(0), 2, -1])), lambda x: -x.reshape(3, 2, 2)),
    "a scalar to ones": (lambda o, x: o.reshape(o.sum(x), [1, 1, 1]), lambda x: x.sum().reshape(1, 1, 1)),
    "no axis": (lambda o, x: o.permute(o.sum(x), []), lambda x: x.sum()),
    "an expanded axis that merges": (
        lambda o, x: o.reshape(o.expand(o.broadcast(x, [False, True, False]), [3, 2, 4]), [6, 4]),
        lambda x: x[:, None].expand(3, 2, 4).reshape(6, 4),
    ),
    "an expanded axis that stays": (
        lambda o, x: o.neg(o.reshape(o.expand(o.broadcast(x, [True, False, False]), [5, 3, 4]), [5, 12])),
        lambda x: -x[None].expand(5, 3, 4).reshape(5, 12),
    ),
    "an expanded axis that goes": (lambda o, x: o.squeeze(o.expand(o.broadcast(o.neg(x), [True, False, False]), [5, 3, 4]), [0], True), lambda x: -x),
    "leading axes": (lambda o, x: o.exp(o.expand(x, [7, 2, 3, 4])), lambda x: x.exp().expand(7, 2, 3, 4).contiguous()),
    "nothing broadcast": (lambda o, x: o.neg(o.broadcast(x, [False, False])), lambda x: -x),
    "a slice of a slice": (lambda o, x: o.neg(o.slice(o.slice(x, [0, 1], [3, 4]), [1, 1], [3, 3])), lambda x: -x[:, 1:][1:, 1:3]),
    "all but the last": (lambda o, x: o.neg(o.slice(x, [0, 0], [x.size(0), o.sub(x.size(1), 1)])), lambda x: -x[:, :-1]),
    "a slice of nothing": (lambda o, x: o.neg(o.slice(x, [1, 2], [1, 2])), lambda x: -x[1:1, 2:2]),
    "pads that cancel": (lambda o, x: o.sum(o.pad(o.pad(x, [1, 1]), [-1, -1]), [1]), lambda x: x.sum(1)),
    "a pad to one element": (lambda o, x: o.add(o.pad(x, [0, -3]), x), lambda x: x[:, :1] + x),
    "a pad of an expanded axis": (
        lambda o, x: o.pad(o.expand(o.slice(x, [0, 0], [1, 4]), [3, 4]), [0, 0, 1, 2]),
        lambda x: F.pad(x[:1].expand(3, 4), [0, 0, 1, 2]),
    ),
    "a pad with all of it": (lambda o, x: o.pad(x, [-4, 2], 5.0), lambda x: torch.full((3, 2), 5.0)),
    "one tensor put together": (lambda o, x: o.cat([o.exp(x)], 0), lambda x: x.exp()),
    "pads put together": (lambda o, x: o.cat([o.pad(x, [0, 4]), o.pad(o.neg(x), [4, 0])], 1, True), lambda x: torch.cat([x, -x], 1)),
    "sums put together": (lambda o, x: o.cat([o.sum(x, [1]), o.sum(x, [0])], 0), lambda x: torch.cat([x.sum(1), x.sum(0)])),
    "triangles beyond the corner": (lambda o, x: o.triu(x, 9), lambda x: x.triu(9)),
    "filled by sizes": (lambda o, x: o.full([o.size(x, -1)], o.size(x, 0), D.Int), lambda x: torch.full((4,), 3)),
}


@pytest.mark.parametrize("part", range(3))
def test_views_of_one_tensor(part: int) -> None:
    views = dict(list(VIEWS.items())[part::3])

    def define(fd: FusionDefinition) -> None:
        x = fd.from_pytorch(X.to(DEVICE))
        for build, _ in views.values():
            fd.add_output(build(fd.ops, x))

    for (name, (_, reference)), got in zip(views.items(), run(define, [X.to(DEVICE)], is_new=None), strict=True):
        want = reference(X)
        assert got.dtype is want.dtype and got.shape == want.shape, name
        torch.testing.assert_close(got.cpu(), want, atol=1e-4, rtol=1e-5, msg=name)


# ---------------------------------------------------------------- updates in place
def swapped(fd: FusionDefinition, a: Any, b: Any) -> None:
    fd.add_output(fd.ops.set(a), b)
    fd.add_output(fd.ops.set(b), a)


def copied(fd: FusionDefinition, a: Any, b: Any) -> None:
    fd.add_output(a, b)


def two_targets(fd: FusionDefinition, a: Any, b: Any) -> None:
    c = fd.ops.add(a, b)
    fd.add_output(c, a)
    fd.add_output(c, b)


def reshaped(fd: FusionDefinition, a: Any, b: Any) -> None:
    fd.add_output(fd.ops.reshape(fd.ops.neg(fd.ops.reshape(a, [12])), [3, 4]), a)
    fd.add_output(fd.ops.sub(a, b))


UPDATES: list[tuple[Callable[..., None], Callable[[Any, Any], tuple[Any, ...]]]] = [
    (swapped, lambda a, b: (b, a)), (copied, lambda a, b: (a, a)), (two_targets, lambda a, b: (a, a + b)), (reshaped, lambda a, b: (-a, b, a - b)),
]  # fmt: skip


@pytest.mark.parametrize(("define", "after"), UPDATES, ids=[d.__name__ for d, _ in UPDATES])
def test_updates_in_place(define: Callable[..., None], after: Callable[[Any, Any], tuple[Any, ...]]) -> None:
    """What the inputs hold after the call, then what it returns. Of two targets for one output the last wins."""
    a, b = torch.randn(3, 4, device=DEVICE), torch.randn(3, 4, device=DEVICE)
    wanted = after(a.clone(), b.clone())
    with FusionDefinition() as fd:
        define(fd, fd.from_pytorch(a), fd.from_pytorch(b))
    returned = fd.execute([a, b])
    for got, want in zip([a, b, *returned], wanted, strict=True):
        torch.testing.assert_close(got, want)
