"""Steps that torch runs: right results between kernels, torch's own errors said by nvFuser's words, and nothing else in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from weft import DataType, FusionDefinition
from weft.ops import torch_ops
from weft.ops.torch_ops import TORCH_OPS
from weft.reference.interpreter import evaluate

BF16 = DataType.BFloat16


def define(build: Callable[[FusionDefinition], None]) -> FusionDefinition:
    with FusionDefinition() as fd:
        build(fd)
    return fd


def given(fd: FusionDefinition, rank: int, dtype: DataType = DataType.Float, **keywords: Any) -> Any:
    return fd.define_tensor(shape=[-1] * rank, contiguity=True, dtype=dtype, **keywords)


def check(fd: FusionDefinition, *inputs: Any, tolerance: float = 1e-4) -> list[torch.Tensor]:
    expected = evaluate(fd.fusion, list(inputs))
    for _ in range(2):
        results = fd.execute(list(inputs))
        for result, wanted in zip(results, expected, strict=True):
            torch.testing.assert_close(result.to(wanted.dtype), wanted, rtol=tolerance, atol=tolerance)
    return results


# ---------------------------------------------------------------- products
@pytest.mark.parametrize(
    ("a", "b"),
    [((5,), (5,)), ((5,), (5, 3)), ((4, 5), (5,)), ((4, 5), (5, 3)), ((2, 4, 5), (5, 3)), ((2, 4, 5), (2, 5, 3)), ((7, 1, 4, 5), (2, 5, 3)), ((4, 0), (0, 3))],
)
def test_matmul_has_torchs_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    def build(fd: FusionDefinition) -> None:
        x, y = (fd.define_tensor(shape=[n if n == 1 else -1 for n in shape], contiguity=[None if n == 1 else True for n in shape]) for shape in (a, b))
        fd.add_output(fd.ops.matmul(x, y))

    x, y = torch.randn(a), torch.randn(b)
    (result,) = check(define(build), x, y)
    assert result.shape == torch.matmul(x, y).shape


@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_between_kernels(has_bias: bool) -> None:
    def build(fd: FusionDefinition) -> None:
        x, w = given(fd, 3, BF16), given(fd, 2, BF16)
        bias = given(fd, 1, BF16) if has_bias else None
        y = fd.ops.linear(fd.ops.cast(fd.ops.relu(x), BF16), w, bias)
        fd.add_output(fd.ops.sum(fd.ops.cast(fd.ops.tanh(y), DataType.Float), [2]))

    bias = [torch.randn(7).bfloat16()] if has_bias else []
    fd = define(build)
    # a result of 16 bits goes through tanh (slope 1 at most), 7 of them are added: 7 * 2^-9 * 4 / 2
    check(fd, torch.randn(2, 5, 16).bfloat16(), torch.randn(7, 16).bfloat16(), *bias, tolerance=3e-2)
    assert len(fd.fec.kernel_runtimes) == 2


def test_operands_of_any_stride() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor(shape=[-1, -1], contiguity=False)
        y = fd.define_tensor(shape=[-1, -1], contiguity=True, stride_order=[0, 1])
        fd.add_output(fd.ops.mul(fd.ops.matmul(x, y), 2.0))

    check(define(build), torch.randn(8, 20)[::2, ::4], torch.randn(3, 5).t())


def test_grouped_products() -> None:
    def build(fd: FusionDefinition, ranks: tuple[int, int]) -> None:
        a, b, ends = given(fd, ranks[0]), given(fd, ranks[1]), given(fd, 1, DataType.Int32)
        fd.add_output(fd.ops.grouped_mm(a, b, ends))

    ends = torch.tensor([2, 2, 6], dtype=torch.int32)
    a, b = torch.randn(6, 4), torch.randn(3, 4, 5)
    (rows,) = check(define(lambda fd: build(fd, (2, 3))), a, b, ends)
    torch.testing.assert_close(rows, torch.cat([a[:2] @ b[0], a[2:] @ b[2]]))
    check(define(lambda fd: build(fd, (2, 2))), torch.randn(4, 6), torch.randn(6, 5), ends)
    check(define(lambda fd: build(fd, (3, 2))), torch.randn(3, 5, 4), torch.randn(4, 6), ends)


@pytest.mark.gpu
@pytest.mark.parametrize("shapes", [((8, 16), (3, 16, 8)), ((16, 8), (8, 24)), ((3, 16, 16), (16, 8))])
def test_groups_may_begin_at_any_row_or_column_on_a_gpu(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """torch's kernel ends the process's work on the device where groups of columns do not begin at a multiple of 8."""
    a, b = (torch.randn(shape, device="cuda").bfloat16() for shape in shapes)
    ends = torch.tensor([2, 5, 8], dtype=torch.int32, device="cuda")
    fd = define(lambda fd: fd.add_output(fd.ops.grouped_mm(fd.from_pytorch(a), fd.from_pytorch(b), fd.from_pytorch(ends))))
    parts = [(0, 2), (2, 5), (5, 8)]
    if a.dim() == b.dim():
        expected = torch.stack([a[:, i:j].double() @ b[i:j].double() for i, j in parts])
    elif a.dim() == 2:
        expected = torch.cat([a[i:j].double() @ b[n].double() for n, (i, j) in enumerate(parts)])
    else:
        expected = torch.cat([a[n].double() @ b[:, i:j].double() for n, (i, j) in enumerate(parts)], 1)
    torch.testing.assert_close(fd.execute([a, b, ends])[0].double(), expected, atol=0.1, rtol=2e-2)


def unfit_for_flash(device: str) -> dict[str, torch.Tensor]:
    """Tensors of 2x3 heads of 5x16 whose rows do not begin at multiples of 16 bytes, or have their elements apart."""
    numbers = torch.randn(4000, device=device).bfloat16()
    return {
        "misaligned": numbers[1:].as_strided((2, 3, 5, 16), (240, 80, 16, 1)), "odd rows": numbers.as_strided((2, 3, 5, 16), (255, 85, 17, 1)),
        "odd heads": numbers.as_strided((2, 3, 5, 16), (251, 83, 16, 1)), "columns": numbers.as_strided((2, 3, 5, 16), (240, 80, 1, 5)),
        "heads inside": numbers[3:].as_strided((2, 3, 5, 16), (240, 16, 48, 1)),
    }  # fmt: skip


@pytest.mark.parametrize("name", unfit_for_flash("cpu"))
def test_flash_attention_gets_rows_that_begin_at_16_bytes(name: str) -> None:
    x = unfit_for_flash("cpu")[name]
    fit = torch_ops._for_flash(x)
    assert torch.equal(fit, x) and fit.stride(-1) == 1 and fit.data_ptr() % 16 == 0 and not any(2 * stride % 16 for stride in fit.stride()[:-1])
    assert name == "columns" or fit.dim_order() == x.dim_order()
    assert torch_ops._for_flash(fit) is fit


@pytest.mark.gpu
@pytest.mark.parametrize("name", unfit_for_flash("cpu"))
def test_attention_of_rows_that_begin_anywhere_on_a_gpu(name: str) -> None:
    """Read by torch's kernel as they are, they end the process's work on the device."""
    q = unfit_for_flash("cuda")[name]
    k, v = q.flip(2), q.flip(1) + 1
    k, v = (torch.empty_strided(t.shape, q.stride(), device="cuda", dtype=t.dtype).copy_(t) for t in (k, v))

    def build(fd: FusionDefinition) -> None:
        for result in fd.ops.sdpfa_fwd(*map(fd.from_pytorch, (q, k, v)))[:1]:
            fd.add_output(result)

    wanted = torch.softmax(q.double() @ k.double().mT / 4, -1) @ v.double()
    torch.testing.assert_close(define(build).execute([q, k, v])[0].double(), wanted, atol=0.03, rtol=0.02)


def test_wrong_operands_are_refused_by_nvfusers_words() -> None:
    with FusionDefinition() as fd:
        x, y, scalar, flat = given(fd, 2), given(fd, 2, BF16), fd.define_tensor(shape=[], contiguity=[]), given(fd, 1)
        wide, thin = fd.define_tensor(shape=[3, 5], contiguity=True), fd.define_tensor(shape=[4, 1], contiguity=[True, None])
        for call, text in (
            (lambda: fd.ops.matmul(x, y), "Expected A and B dtypes to have the same dtype, got:"),
            (lambda: fd.ops.matmul(x, scalar), "Expected inputs to be atleast 1D"),
            (lambda: fd.ops.linear(x, flat), "Input B must be at least 2D"),
            (lambda: fd.ops.linear(x, y), "Expected input and weight dtypes to have the same dtype"),
            (lambda: fd.ops.linear(x, x, fd.ops.cast(flat, BF16)), "Expected bias to have the same dtype as A and B"),
            (lambda: fd.ops.matmul(wide, wide), "extent 5"),
            (lambda: fd.ops.matmul(thin, wide), "K should be broadcast in both A and B, or neither"),
            (lambda: fd.ops.matmul(thin, x), "K should be broadcast in both A and B, or neither"),
            (lambda: fd.ops.grouped_mm(flat, x, flat), "Unexpected operand ranks"),
        ):
            with pytest.raises(RuntimeError, match=text):
                call()
        with pytest.raises(TypeError):
            fd.ops.matmul(x, 2.0)


# ---------------------------------------------------------------- attention
def attention(fd: FusionDefinition, rank: int, **options: Any) -> None:
    q, k, v, g = (given(fd, rank) for _ in range(4))
    out, sums, seed, offset = fd.ops.sdpfa_fwd(fd.ops.mul(q, 0.5), k, v, **options)
    grads = fd.ops.sdpfa_bwd(fd.ops.exp(g), fd.ops.mul(q, 0.5), k, v, out, sums, 0.0, options.get("is_causal", False), seed, offset, None)
    for value in (out, sums, *grads):
        fd.add_output(value)


@pytest.mark.parametrize("shape", [(2, 3, 6, 8), (2, 1, 3, 5, 4)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_has_torchs_results_and_gradients(shape: tuple[int, ...], is_causal: bool) -> None:
    q, k, v, g = (torch.randn(shape) for _ in range(4))
    out, _, *grads = check(define(lambda fd: attention(fd, len(shape), is_causal=is_causal)), q, k, v, g)
    leaves = [(q * 0.5).requires_grad_(), k.clone().requires_grad_(), v.clone().requires_grad_()]
    wanted = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=is_causal)
    torch.testing.assert_close(out, wanted.detach(), rtol=1e-4, atol=1e-4)
    for grad, expected in zip(grads, torch.autograd.grad(wanted, leaves, g.exp()), strict=True):
        torch.testing.assert_close(grad, expected, rtol=1e-3, atol=1e-4)


def test_attention_with_mask_bias_and_shared_heads() -> None:
    def build(fd: FusionDefinition) -> None:
        q, k, v, bias, mask = (*(given(fd, 4) for _ in range(4)), given(fd, 2, DataType.Bool))
        fd.add_output(fd.ops.sdpfa_fwd(q, k, v, bias, mask, scale=0.3)[0])

    q, k, v, bias = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 4, 5, 6)
    mask = torch.rand(5, 6) > 0.3
    (out,) = check(define(build), q, k, v, bias, mask)
    both = bias.masked_fill(~mask, -float("inf"))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, both, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-4)


def test_attention_takes_numbers_in_the_places_of_bias_and_mask() -> None:
    """As nvFuser did before it had them, and as Thunder passes them: with other numbers by name, and without a bias as well."""

    def build(fd: FusionDefinition) -> None:
        q, k, v = (given(fd, 4) for _ in range(3))
        p, is_causal, scale = fd.define_scalar(0.0), fd.define_scalar(True), fd.define_scalar(0.3)
        for args, kwargs in (((p, is_causal, scale), {}), ((0.0, True), {"scale": 0.3}), ((None, True, 0.3), {}), ((0.0,), {"is_causal": True, "scale": 0.3})):
            fd.add_output(fd.ops.sdpfa_fwd(q, k, v, *args, **kwargs)[0])

    q, k, v = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
    for out in check(define(build), q, k, v):
        torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-4)
    with FusionDefinition() as fd:
        q, k, v = (given(fd, 4) for _ in range(3))
        for args, kwargs in (((0.0,), {"dropout_p": 0.1}), ((0.0, True, 0.3, 1), {})):
            with pytest.raises(TypeError, match="bias must be a TensorView"):
                fd.ops.sdpfa_fwd(q, k, v, *args, **kwargs)


def test_the_output_of_attention_lies_like_the_query() -> None:
    def build(fd: FusionDefinition) -> None:
        q = fd.define_tensor(shape=[-1] * 4, contiguity=True, stride_order=[3, 1, 2, 0])
        fd.add_output(fd.ops.relu(fd.ops.sdpfa_fwd(q, given(fd, 4), given(fd, 4))[0]))
        fd.add_output(fd.ops.sdpfa_fwd(q, q, q)[0])

    q = torch.randn(2, 5, 3, 8).transpose(1, 2)
    (_, same) = check(define(build), q, torch.randn(2, 3, 6, 8), torch.randn(2, 3, 6, 8))
    assert same.stride() == q.stride()


# ---------------------------------------------------------------- what runs in torch
class Called(TorchDispatchMode):
    """The ops of torch that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


MEMORY = {"empty_strided", "empty", "detach", "view"}
"""Calls that compute nothing."""


def test_nothing_but_the_ops_of_the_table_runs_in_torch() -> None:
    def build(fd: FusionDefinition) -> None:
        x, w = given(fd, 2), given(fd, 2)
        h = fd.ops.linear(fd.ops.relu(x), w)
        norm = fd.ops.sub(h, fd.ops.broadcast(fd.ops.sum(h, [1]), [False, True]))
        fd.add_output(fd.ops.mul(norm, fd.ops.broadcast(fd.ops.sum(norm, [0]), [True, False])))

    fd = define(build)
    inputs = [torch.randn(5, 8), torch.randn(6, 8)]
    for _ in range(2):
        with Called() as called:
            fd.execute(inputs)
        assert called.names - MEMORY <= {"mm", "t", "linear", "matmul", "transpose"}, called.names
    kernels = {runtime.scheduler for runtime in fd.fec.kernel_runtimes}
    assert kernels <= {"pointwise", "reduction", "inner_persistent", "outer_persistent", "inner_outer_persistent"}


def test_the_table_has_nvfusers_ops_only() -> None:
    """What nvFuser runs in torch where it stands alone (csrc/scheduler/expr_eval_sched.cpp), the plain names of its scans, and the gradient of an embedding."""
    assert set(TORCH_OPS) == {
        "matmul", "linear", "grouped_mm", "scaled_mm", "scaled_grouped_mm", "sdpfa_fwd", "sdpfa_bwd", "embedding_fwd", "embedding_bwd", "argsort", "topk", "scan", "scatter",
    }  # fmt: skip


def test_results_record_no_gradient() -> None:
    def build(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.matmul(given(fd, 2), given(fd, 2)))

    (out,) = define(build).execute([torch.nn.Parameter(torch.randn(3, 4)), torch.randn(4, 5)])
    assert not out.requires_grad


def test_a_scalar_of_the_call_reaches_torch() -> None:
    def build(fd: FusionDefinition) -> None:
        q, scale = given(fd, 4), fd.define_scalar(DataType.Double)
        fd.add_output(fd.ops.sdpfa_fwd(q, q, q, scale=scale)[0])

    fd, q = define(build), torch.randn(1, 2, 3, 8)
    for number in (0.3, 2.0):
        check(fd, q, number)


def test_sorting_stands_between_kernels() -> None:
    def build(fd: FusionDefinition) -> None:
        x, k = given(fd, 2), fd.define_scalar(DataType.Int)
        values, places = fd.ops.topk(fd.ops.neg(x), k, 1, True, True)
        fd.add_output(fd.ops.sum(values, [1]))
        fd.add_output(places)
        fd.add_output(fd.ops.argsort(x, 0))

    fd, x = define(build), torch.randn(4, 9)
    for k in (3, 1, 9):
        check(fd, x, k)


def test_scans_and_scatters() -> None:
    def build(fd: FusionDefinition) -> None:
        x, index, source = given(fd, 2), given(fd, 2, DataType.Int), given(fd, 2)
        fd.add_output(fd.ops.relu(fd.ops.cumsum(fd.ops.relu(x), 1)))
        fd.add_output(fd.ops.neg(fd.ops.scatter(x, index, source, 1)))

    check(define(build), torch.randn(4, 9), torch.tensor([[0, 3], [8, 1], [2, 5], [7, 6]]), torch.randn(4, 2))


def test_a_definition_with_torch_ops_prints_as_python() -> None:
    fd = define(lambda fd: attention(fd, 4, is_causal=True))
    namespace: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), namespace)  # noqa: S102
    with FusionDefinition() as again:
        namespace["nvfuser_fusion"](again)
    assert again.fusion == fd.fusion


def test_rows_of_16_bits_are_added_up_in_float32() -> None:
    """By torch's gradient of an embedding: many rows of one entry, rounded once."""
    grad, index = torch.randn(700, 5).bfloat16(), torch.randint(0, 3, (700,))
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.embedding_bwd(fd.from_pytorch(grad), fd.from_pytorch(index), 3))
    wanted = torch.zeros(3, 5, dtype=torch.float64).index_add(0, index, grad.double())
    torch.testing.assert_close(fd.execute([grad, index])[0].double(), wanted, rtol=2**-8, atol=1e-4)
