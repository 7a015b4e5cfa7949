"""Scans that begin at the last element: those between two reversals of their axis, as in gradients of running sums, are one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs
from lookup_cases import TYPES, numbers

from weft import DataType, FusionDefinition
from weft.device.library import translation_unit
from weft.lower import pipeline
from weft.lower.contracts import lowering_pass
from weft.lower.kernel_ir import Kernel, Scan, walk
from weft.lower.verify import BrokenKernel
from weft.options import options
from weft.runtime.nvrtc import compile_cubin
from weft.runtime.resources import disassemble, disassembler

SHAPES = [
    ((3, 1000), 1), ((2, 4100), 1), ((5, 33), 1), ((1, 1, 7), 2), ((700, 9), 0), ((40, 64), 0), ((1, 5), 0), ((5, 1), 0), ((5, 1), 1), ((3, 50, 17), 1), ((0, 5), 1), ((5, 0), 1),
    ((1,), 0), ((0,), 0), ((70, 2049), 1), ((1, 100003), 1), ((40000,), 0), ((30011, 3), 0), ((2, 40000, 3), 1), ((4100, 6), 0),
]  # fmt: skip


def flip(fd: FusionDefinition, x: Any, dim: int) -> Any:
    size = x.size(dim)
    return fd.ops.index_select(x, fd.ops.iota(size, fd.ops.sub(size, 1), -1), dim)


def check(define: Callable[..., Any], x: torch.Tensor, want: torch.Tensor, tolerance: float, kernels: int = 1) -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(define(fd, fd.define_tensor([-1] * x.dim(), contiguity=[True] * x.dim(), dtype=TYPES[x.dtype])))
    with poisoned_outputs():
        (out,) = fd.execute([x])
    torch.testing.assert_close(out.double(), want.double(), rtol=tolerance, atol=tolerance)
    if x.numel():
        assert len(fd.fec.kernel_runtimes) == kernels  # type: ignore[attr-defined]
    return fd


def back(x: torch.Tensor, dim: int, scan: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return scan(x.flip(dim)).flip(dim)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("shape, dim", SHAPES, ids=str)
def test_sums_from_the_end(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    """Rows and columns, vectors and rows that begin anywhere, several columns of a thread, and rows that several blocks share."""
    x = numbers(*shape, dtype=dtype)
    want = back(x.double(), dim, lambda t: t.cumsum(dim))
    check(lambda fd, t: flip(fd, fd.ops.cumsum(flip(fd, t, dim), dim), dim), x, want, 0 if dtype is torch.int64 else 1e-3)


@pytest.mark.parametrize("shape, dim", [((300, 11), 0), ((3, 9001), 1), ((3, 4100), 1), ((1, 100003), 1), ((30011, 3), 0), ((257, 40), 0)], ids=str)
def test_sums_from_the_end_of_axes_of_known_size(shape: tuple[int, ...], dim: int) -> None:
    """Loops over the pieces of a row are of known length, and load the next piece ahead: the one before, from the last one on."""
    x = numbers(*shape, dtype=torch.int64)
    with FusionDefinition() as fd:
        fd.add_output(flip(fd, fd.ops.cumsum(flip(fd, fd.define_tensor(list(shape), contiguity=True, dtype=DataType.Int), dim), dim), dim))
    with poisoned_outputs():
        (out,) = fd.execute([x])
    assert torch.equal(out, back(x, dim, lambda t: t.cumsum(dim)))
    assert fd.fec.kernel_runtimes[0].proposal.params.is_ahead and len(fd.fec.kernel_runtimes) == 1  # type: ignore[attr-defined]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("shape, dim", SHAPES, ids=str)
def test_sums_in_both_directions_on_a_gpu(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    x, tolerance = numbers(*shape, dtype=dtype).cuda(), 0 if dtype is torch.int64 else 1e-3
    check(lambda fd, t: flip(fd, fd.ops.cumsum(flip(fd, t, dim), dim), dim), x, back(x.double(), dim, lambda t: t.cumsum(dim)), tolerance)
    check(lambda fd, t: fd.ops.cumsum(t, dim), x, x.double().cumsum(dim), tolerance)


@pytest.mark.skipif(disassembler() is None, reason="needs nvdisasm: pip install nvidia-cuda-nvdisasm")
@pytest.mark.parametrize("shape", [(2, 4100), (40000,)], ids=str)
def test_the_compiler_loads_all_of_a_piece(shape: tuple[int, ...]) -> None:
    """Two vectors per piece, each loaded for the first piece and for the next ones. NVRTC 13.0 left out half of them where a loop's index was subtracted."""
    dim = len(shape) - 1
    x = numbers(*shape)
    with options(cache=False):
        from_the_end = check(lambda fd, t: flip(fd, fd.ops.cumsum(flip(fd, t, dim), dim), dim), x, back(x.double(), dim, lambda t: t.cumsum(dim)), 1e-3)
        usual = check(lambda fd, t: fd.ops.cumsum(t, dim), x, x.double().cumsum(dim), 1e-3)
    assert loads_of(from_the_end) == loads_of(usual) > 0


def loads_of(fd: Any) -> int:
    """Vector loads from memory in the machine code of a definition's only kernel, for an H200."""
    (runtime,) = fd.fec.kernel_runtimes
    program = runtime.program
    return (disassemble(compile_cubin(translation_unit(program.text, program.blocks), program.name, "sm_90a").cubin) or "").count("LDG.E.128")


def test_torch_runs_it_from_the_end_where_no_kernel_does(monkeypatch: pytest.MonkeyPatch) -> None:
    @lowering_pass()
    def refused(kernel: Kernel, state: object) -> Kernel:
        if any(isinstance(s, Scan) for s in walk(kernel.body)):
            raise BrokenKernel(after="refused", kernel=kernel.name, reason="a test wants no kernel of a scan")
        return kernel

    monkeypatch.setattr(pipeline, "PIPELINE", (*pipeline.PIPELINE, refused))
    x = numbers(7, 300)
    with options(cache=False):
        fd = check(lambda fd, t: flip(fd, fd.ops.cumsum(flip(fd, t, 1), 1), 1), x, back(x.double(), 1, lambda t: t.cumsum(1)), 1e-3)
    assert "1 op of torch" in str(fd.fec)  # type: ignore[attr-defined]


@pytest.mark.parametrize("dim", [0, 1])
def test_casts_and_other_ops_between(dim: int) -> None:
    x = numbers(90, 700).bfloat16()

    def define(fd: FusionDefinition, t: Any) -> Any:
        total = fd.ops.cumsum(fd.ops.mul(fd.ops.cast(flip(fd, t, dim), DataType.Float), 0.5), dim, 3.0)
        return flip(fd, fd.ops.cast(fd.ops.neg(total), DataType.BFloat16), dim)

    check(define, x, -back(x.double() / 2, dim, lambda t: t.cumsum(dim) + 3), 2.0**-8)


@pytest.mark.parametrize("name", ["cummax", "cummin", "cumprod", "logcumsumexp"])
@pytest.mark.parametrize("shape, dim", [((3, 1500), 1), ((1500, 5), 0), ((1, 50001), 1)], ids=str)
def test_other_folds_from_the_end(name: str, shape: tuple[int, ...], dim: int) -> None:
    x = numbers(*shape)
    x = 1 + 0.001 * x if name == "cumprod" else 5 * x
    found = back(x.double(), dim, lambda t: r if isinstance(r := getattr(torch, name)(t, dim), torch.Tensor) else r.values)
    check(lambda fd, t: flip(fd, getattr(fd.ops, name)(flip(fd, t, dim), dim), dim), x, found, 1e-4)


@pytest.mark.parametrize("times", [2, 3, 4])
@pytest.mark.parametrize("shape, dim", [((31, 1500), 1), ((1500, 5), 0), ((1, 1), 1)], ids=str)
def test_reversals_around_reversals(shape: tuple[int, ...], dim: int, times: int) -> None:
    """The gradient of a sum from the end has four: two of them are those of the sum. What reads the result is in the kernel, too."""
    x = numbers(*shape)

    def define(fd: FusionDefinition, t: Any) -> Any:
        value = fd.ops.mul(t, 0.5)
        for _ in range(times):
            value = flip(fd, value, dim)
        value = fd.ops.cumsum(value, dim)
        for _ in range(times):
            value = flip(fd, value, dim)
        return fd.ops.mul(value, t)

    wide = x.double()
    want = (wide / 2).cumsum(dim) if times % 2 == 0 else back(wide / 2, dim, lambda t: t.cumsum(dim))
    check(define, x, want * wide, 1e-4)


def test_work_around_it_and_a_second_scan_in_the_same_direction() -> None:
    x = numbers(40, 900)

    def define(fd: FusionDefinition, t: Any) -> Any:
        first = flip(fd, fd.ops.cumsum(flip(fd, fd.ops.sin(t), 1), 1), 1)
        return fd.ops.sub(fd.ops.mul(first, t), flip(fd, fd.ops.cummax(flip(fd, t, 1), 1), 1))

    wide = x.double()
    check(define, x, back(wide.sin(), 1, lambda t: t.cumsum(1)) * wide - back(wide, 1, lambda t: t.cummax(1).values), 1e-4)


def test_scans_of_both_directions_are_two_kernels() -> None:
    x = numbers(40, 900)
    want = back(x.double(), 1, lambda t: t.cumsum(1)) + x.double().cumsum(1)
    check(lambda fd, t: fd.ops.add(flip(fd, fd.ops.cumsum(flip(fd, t, 1), 1), 1), fd.ops.cumsum(t, 1)), x, want, 1e-4, kernels=2)


def test_what_is_not_reversed_twice_along_the_axis_stays() -> None:
    """One reversal only, reversals of another axis, and a result that is also read as it is."""
    x = numbers(30, 200)
    wide = x.double()
    check(lambda fd, t: fd.ops.cumsum(flip(fd, t, 1), 1), x, wide.flip(1).cumsum(1), 1e-4)
    check(lambda fd, t: flip(fd, fd.ops.cumsum(t, 1), 1), x, wide.cumsum(1).flip(1), 1e-4, kernels=2)
    check(lambda fd, t: flip(fd, fd.ops.cumsum(flip(fd, t, 0), 1), 0), x, wide.cumsum(1), 1e-4, kernels=2)

    def both(fd: FusionDefinition, t: Any) -> Any:
        total = fd.ops.cumsum(flip(fd, t, 1), 1)
        return fd.ops.sub(total, flip(fd, total, 1))

    total = wide.flip(1).cumsum(1)
    check(both, x, total - total.flip(1), 1e-4, kernels=2)


def test_positions_count_from_the_reversed_end() -> None:
    x = torch.randint(-5, 5, (20, 300)).float()
    check(lambda fd, t: flip(fd, fd.ops.cummax_with_indices(flip(fd, t, 1), 1)[1], 1), x, x.flip(1).cummax(1).indices.flip(1), 0, kernels=2)
