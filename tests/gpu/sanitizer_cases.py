"""One small fusion per scheduler and heuristic, for compute-sanitizer.

    PYTHONPATH=. compute-sanitizer --tool memcheck python tests/gpu/sanitizer_cases.py [--only TEXT]
    (also --tool racecheck, --tool synccheck; --kernel-name kernel_substring=weft_ leaves out torch's own kernels)

Normalizations, reductions and pointwise fusions by every way to keep rows; rows and columns reduced at once by every way; transposes, lookups, running sums
and narrow types. Prints which scheduler and parameters ran, and the error against float64; exits with 1 when a result is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "schedulers"))

from two_sided_fusions import CASES as TWO_SIDED  # noqa: E402
from two_sided_fusions import PHASED_WAYS, WAYS, forced, norm_backward, norm_backward_in_float64, norm_backward_inputs  # noqa: E402

from weft import DataType, FusionDefinition, quantize  # noqa: E402
from weft.options import options  # noqa: E402

FLOAT, BFLOAT16 = DataType.Float, DataType.BFloat16


def normalization(fd: FusionDefinition, dim: int, dtype: DataType) -> None:
    """Softmax over `dim` of a 2-D tensor."""
    x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=dtype)
    wide = fd.ops.cast(x, dtype=FLOAT)
    e = fd.ops.exp(fd.ops.sub(wide, fd.ops.max(wide, dims=[dim], keepdim=True)))
    fd.add_output(fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, dims=[dim], keepdim=True)), dtype=dtype))


def total(fd: FusionDefinition, rank: int, dims: list[int], dtype: DataType) -> None:
    """Sum over `dims`."""
    x = fd.define_tensor(shape=[-1] * rank, contiguity=[True] * rank, dtype=dtype)
    fd.add_output(fd.ops.sum(fd.ops.cast(x, dtype=FLOAT), dims=dims))


def bias(fd: FusionDefinition) -> None:
    """tanh(x + b), b along the last axis."""
    x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=BFLOAT16)
    b = fd.define_tensor(shape=[-1], contiguity=[True], dtype=BFLOAT16)
    wide = fd.ops.broadcast_in_dim(fd.ops.cast(b, dtype=FLOAT), shape=x.shape(), broadcast_dims=[1])
    fd.add_output(fd.ops.cast(fd.ops.tanh(fd.ops.add(fd.ops.cast(x, dtype=FLOAT), wide)), dtype=BFLOAT16))


def permuted(fd: FusionDefinition) -> None:
    """exp of a permuted tensor."""
    x = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=FLOAT)
    fd.add_output(fd.ops.exp(fd.ops.permute(x, dims=[2, 0, 1])))


def layer_norm(fd: FusionDefinition) -> None:
    """Mean and variance over two trailing axes, kept, with the normalized tensor."""
    x = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=FLOAT)
    var, mean = fd.ops.var_mean(x, dims=[1, 2], correction=0, keepdim=True)
    fd.add_output(fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(var, fd.define_scalar(1e-5, dtype=DataType.Double)))))


def rms_norm(fd: FusionDefinition) -> None:
    """x / rms(x) * weight over rows."""
    x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=BFLOAT16)
    w = fd.define_tensor(shape=[-1], contiguity=[True], dtype=BFLOAT16)
    wide = fd.ops.cast(x, dtype=FLOAT)
    mean = fd.ops.div(fd.ops.sum(fd.ops.mul(wide, wide), dims=[1], keepdim=True), x.size(1))
    weight = fd.ops.broadcast_in_dim(fd.ops.cast(w, dtype=FLOAT), shape=x.shape(), broadcast_dims=[1])
    fd.add_output(fd.ops.cast(fd.ops.mul(fd.ops.mul(wide, fd.ops.rsqrt(mean)), weight), dtype=BFLOAT16))


def rms_norm_of_torch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * x.square().mean(1, keepdim=True).rsqrt() * w


def weighted_layer_norm(fd: FusionDefinition) -> None:
    """Layer norm of rows, with a weight and a bias."""
    x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=FLOAT)
    weight, bias = (fd.ops.broadcast_in_dim(fd.define_tensor(shape=[-1], contiguity=[True], dtype=FLOAT), shape=x.shape(), broadcast_dims=[1]) for _ in range(2))
    var, mean = fd.ops.var_mean(x, dims=[1], correction=0, keepdim=True)
    scaled = fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(var, fd.define_scalar(1e-5, dtype=DataType.Double))))
    fd.add_output(fd.ops.add(fd.ops.mul(scaled, weight), bias))


def softmax(dim: int) -> Callable:
    return lambda x: torch.softmax(x, dim)


def softmax_with_column_sums(fd: FusionDefinition) -> None:
    x = fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=BFLOAT16), FLOAT)
    e = fd.ops.exp(x - fd.ops.max(x, [1], True))
    y = e / fd.ops.sum(e, [1], True)
    fd.add_output(fd.ops.cast(y, BFLOAT16))
    fd.add_output(fd.ops.sum(y, [0]))


CASES: list[tuple[str, Callable, list, Callable, str, str]] = []


def case(name: str, define: Callable, inputs: list, reference: Callable, rows: str = "auto", way: str = "") -> None:
    """reference: of the inputs in float64, one result or a list. rows: how a normalization is to keep its rows, see docs/settings.md. way: of rows and columns."""
    CASES.append((name, define, inputs, reference, rows, way))


def collect() -> None:
    torch.manual_seed(0)
    bf16 = torch.bfloat16
    for rows, columns in ((33, 1000), (40, 77), (3, 8192), (3, 20000), (2, 70000), (300, 24), (37, 4093), (5, 33333)):
        case(f"softmax {rows}x{columns}", lambda fd: normalization(fd, 1, BFLOAT16), [torch.randn(rows, columns).to(bf16)], softmax(1))
    case("softmax float32 2x40000", lambda fd: normalization(fd, 1, FLOAT), [torch.randn(2, 40000)], softmax(1))
    case("softmax 1x600000", lambda fd: normalization(fd, 1, BFLOAT16), [torch.randn(1, 600000).to(bf16)], softmax(1))
    case("softmax over rows", lambda fd: normalization(fd, 0, BFLOAT16), [torch.randn(300, 130).to(bf16)], softmax(0))
    case("layer norm of two axes", layer_norm, [torch.randn(7, 12, 50)], lambda x: torch.nn.functional.layer_norm(x, x.shape[1:]))
    for shape, dims in (((33, 1000), [1]), ((33, 1001), [1]), ((3000, 64), [0]), ((1, 50000), [1]), ((130, 7), [0]), ((1100, 4096), [0]), ((700, 5000), [1]), ((9, 300, 20), [0, 2]), ((40000,), [0])):
        reference = lambda x, dims=dims: x.sum(dims)  # noqa: E731
        case(f"sum {shape} over {dims}", lambda fd, s=shape, d=dims: total(fd, len(s), d, BFLOAT16), [torch.randn(*shape).to(bf16)], reference)
    for rows in ("tma", "specialized"):
        for shape, dtype, data in (((300, 1000), BFLOAT16, bf16), ((140, 4096), FLOAT, torch.float32)):
            x = torch.randn(*shape).to(data)
            case(f"softmax {shape} {rows}", lambda fd, dtype=dtype: normalization(fd, 1, dtype), [x], softmax(1), rows)
    case("softmax float32 140x20000", lambda fd: normalization(fd, 1, FLOAT), [torch.randn(140, 20000)], softmax(1))  # a row by TMA, unasked
    for rows, columns in ((3, 16384), (300, 16384), (1200, 1024), (1060, 2048)):  # few rows in clusters, weights before rows in clusters and in one block
        case(f"RMS norm {rows}x{columns}", rms_norm, [torch.randn(rows, columns).to(bf16), torch.randn(columns).to(bf16)], rms_norm_of_torch)
    for rows, columns in ((140, 16384), (270, 8192), (520, 4096)):  # weights in shared memory: clusters of four and of two, few rows in one block each
        tensors = [torch.randn(rows, columns), torch.randn(columns), torch.randn(columns)]
        case(f"layer norm {rows}x{columns}", weighted_layer_norm, tensors, lambda x, w, b: torch.nn.functional.layer_norm(x, (x.shape[1],), w, b))
    case("bias 2-D", bias, [torch.randn(500, 2048).to(bf16), torch.randn(2048).to(bf16)], lambda x, b: torch.tanh(x + b))
    case("bias odd", bias, [torch.randn(5, 33).to(bf16), torch.randn(33).to(bf16)], lambda x, b: torch.tanh(x + b))
    case("permute", permuted, [torch.randn(17, 33, 65)], lambda x: torch.exp(x.permute(2, 0, 1)))


def collect_two_sided() -> None:
    for rows, columns in ((35, 520), (5, 497), (300, 24), (3, 16384), (2, 33333)):
        case(f"norm backward {rows}x{columns}{' (cluster)' * (columns > 10000)}", norm_backward(BFLOAT16), norm_backward_inputs(rows, columns, BFLOAT16), lambda *t: norm_backward_in_float64(t))
    for way in WAYS:
        shared = " (cluster)" * ("cluster_blocks" in WAYS[way])
        rows = 36 if WAYS[way].get("has_whole_steps") else 35
        case(f"norm backward, {way}{shared}", norm_backward(BFLOAT16), norm_backward_inputs(rows, 512, BFLOAT16), lambda *t: norm_backward_in_float64(t), way=way)
    for way in PHASED_WAYS:
        shared = " (cluster)" * ("cluster_blocks" in PHASED_WAYS[way])
        case(f"norm backward by phase, {way}{shared}", norm_backward(BFLOAT16), norm_backward_inputs(35, 509, BFLOAT16), lambda *t: norm_backward_in_float64(t), way=way)
    for rows, columns in ((700, 4097), (1025, 2047), (4099, 513)):
        case(f"column sums {rows}x{columns}", lambda fd: total(fd, 2, [0], BFLOAT16), [torch.randn(rows, columns).to(torch.bfloat16)], lambda x: x.sum(0))
    for rows, columns in ((70, 257), (300, 24), (35, 512), (600, 4096), (3, 16384)):
        case(f"softmax with sums of columns {rows}x{columns}{' (cluster)' * (columns > 10000)}", softmax_with_column_sums, [torch.randn(rows, columns).to(torch.bfloat16)],
             lambda x: [torch.softmax(x, 1), torch.softmax(x, 1).sum(0)])  # fmt: skip
    for name, make in TWO_SIDED.items():
        fd, inputs, wanted = make()
        case(f"rows and columns, {name}", fd, inputs, lambda *_, wanted=wanted: wanted)


def along(name: str, *arguments: object) -> Callable:
    """An op of one float matrix, by its name in `fd.ops`."""

    def define(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=FLOAT)
        fd.add_output(getattr(fd.ops, name)(x, *arguments))

    return define


def transposed(fd: FusionDefinition) -> None:
    """exp of a matrix, turned."""
    x = fd.define_tensor([-1, -1], contiguity=True, dtype=FLOAT)
    fd.add_output(fd.ops.set(fd.ops.permute(fd.ops.exp(x), [1, 0])))


def turned(dims: list[int], dtype: DataType) -> Callable:
    """A copy whose axes stand in another order in memory."""

    def define(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1] * len(dims), contiguity=True, dtype=dtype)
        fd.add_output(fd.ops.stride_order(fd.ops.permute(x, dims), list(range(len(dims)))[::-1]))

    return define


def indexed(name: str, dim: int) -> Callable:
    """A lookup of one float matrix by an index, and work on what it finds."""

    def define(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=FLOAT)
        index = fd.define_tensor([-1] if name == "index_select" else [-1, -1], contiguity=True, dtype=DataType.Int)
        fd.add_output(fd.ops.exp(getattr(fd.ops, name)(x, index, dim)))

    return define


def collect_others() -> None:
    """Transposes, lookups and running sums, also those whose rows or columns several blocks share."""
    for rows, columns, dim in ((1, 100003, 1), (3, 70001, 1), (30011, 3, 0), (8192, 1, 0)):
        for name in ("cumsum", "cummax"):
            case(f"shared {name} {rows}x{columns}", along(name, dim), [torch.randn(rows, columns)],
                 lambda x, name=name, dim=dim: x.cumsum(dim) if name == "cumsum" else x.cummax(dim).values)  # fmt: skip
    for shape, dims in (((523, 641), [1, 0]), ((3, 1023, 1025), [0, 2, 1]), ((700, 9, 4), [2, 1, 0]), ((3, 50, 900), [2, 1, 0])):
        for dtype, data in ((BFLOAT16, torch.bfloat16), (FLOAT, torch.float32)):
            case(f"turned {shape} {data}", turned(dims, dtype), [torch.randn(*shape).to(data)], lambda x, dims=dims: x.permute(dims))
    for rows, columns in ((512, 640), (257, 1023), (70, 4100)):
        case(f"transpose {rows}x{columns}", transposed, [torch.randn(rows, columns)], lambda x: x.t().exp())
        for dim in (0, 1):
            case(f"cumsum {rows}x{columns} along {dim}", along("cumsum", dim), [torch.randn(rows, columns)], lambda x, dim=dim: x.cumsum(dim))
            size, limit = (50, columns) if dim == 0 else (rows, 50), (rows, columns)[dim]
            index = torch.randint(limit, size)
            case(f"gather {rows}x{columns} along {dim}", indexed("gather", dim), [torch.randn(rows, columns), index], lambda x, i, dim=dim: x.gather(dim, i.long()).exp())
            case(f"index_select {rows}x{columns} along {dim}", indexed("index_select", dim), [torch.randn(rows, columns), index.flatten()[:37].clone()],
                 lambda x, i, dim=dim: x.index_select(dim, i.long()).exp())  # fmt: skip


RECIPES: dict[str, tuple[Callable, float]] = {
    "per_row": (quantize.per_row, 2.0**-4), "mxfp8": (quantize.mxfp8, 2.0**-4), "mxfp4": (quantize.mxfp4, 2.0**-2), "nvfp4": (quantize.nvfp4, 2.0**-2),
}  # fmt: skip
"""Recipe -> the error of its elements: half a step of 3 bits of mantissa, or of 1 bit."""


def quantized() -> int:
    """Quantize and go back; return how many recipes are wrong."""
    wrong = 0
    for name, (recipe, bound) in RECIPES.items():
        x = torch.randn(70, 256).to(torch.bfloat16)
        elements, scales = recipe(x.cuda(), layout="rows") if name != "per_row" else recipe(x.cuda())
        back = quantize.dequantize(elements, scales, dtype=torch.float32)
        error = float((back.cpu().double() - x.double()).norm() / x.double().norm())
        wrong += not error < bound
        print(f"{'ok   ' if error < bound else 'WRONG'} quantize {name:23s} error {error:.1e}", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--without", default="\n", help="no cases whose name has this text")
    arguments = parser.parse_args()
    only = arguments.only
    collect()
    collect_two_sided()
    collect_others()
    wrong = 0
    for name, define, inputs, reference, rows, way in CASES:
        if only not in name or arguments.without in name:
            continue
        fd = define
        if not isinstance(fd, FusionDefinition):
            with FusionDefinition() as fd:
                define(fd)
        with options(rows=rows), forced(way) if way else contextlib.nullcontext():
            results = fd.execute([t.cuda() if isinstance(t, torch.Tensor) else t for t in inputs])
        wanted = reference(*[t.double() if isinstance(t, torch.Tensor) else t for t in inputs])
        wanted = [wanted] if isinstance(wanted, torch.Tensor) else wanted
        errors = [float((r.cpu().double() - w).norm() / w.norm()) for r, w in zip(results, wanted, strict=True)]
        runtime = fd.fec.kernel_runtimes[-1]
        ok = all(error < {torch.bfloat16: 4e-3, torch.float16: 5e-4}.get(r.dtype, 2e-6) for r, error in zip(results, errors))
        wrong += not ok
        print(f"{'ok   ' if ok else 'WRONG'} {name:32s} error {max(errors):.1e} {runtime.proposal.scheduler.name} {runtime.proposal.params}", flush=True)
    return 1 if wrong + (quantized() if only in "quantize" else 0) else 0


if __name__ == "__main__":
    sys.exit(main())
