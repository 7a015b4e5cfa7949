"""Iterations of long unrolled loops can be kept apart, and are where a kernel spills otherwise."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.device.library import translation_unit
from weft.lower.program import KernelProgram
from weft.options import current, options
from weft.runtime import nvrtc
from weft.runtime.spills import APART, mixed_or_apart
from weft.schedulers.persistent_params import RowsOf

BF16, FLOAT = DataType.BFloat16, DataType.Float


def shares(links: int, shape: tuple[int, int] = (8192, 4096)) -> FusionDefinition:
    """Products with sums over rows of two matrices, behind `links` quotients and logarithms, which are computed again where they are needed again."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x, y = (ops.cast(fd.define_tensor(shape, contiguity=True, dtype=BF16), FLOAT) for _ in range(2))
        p, q = ops.exp(x), ops.exp(y)
        for _ in range(links):
            middle = ops.add(p, q)
            p, q = ops.add(p, ops.log(ops.div(p, middle))), ops.mul(q, ops.div(middle, ops.add(ops.mul(p, p), 1.0)))
            p = ops.mul(p, p)
        total = ops.sum(ops.mul(p, q), [1], True)
        for t in (ops.mul(p, total), ops.div(q, ops.add(ops.mul(total, total), 1.0))):
            fd.add_output(ops.cast(t, BF16))
    return fd


def wanted(x: torch.Tensor, y: torch.Tensor, links: int) -> tuple[torch.Tensor, torch.Tensor]:
    p, q = x.double().exp(), y.double().exp()
    for _ in range(links):
        middle = p + q
        p, q = p + (p / middle).log(), q * (middle / (p * p + 1))
        p = p * p
    total = (p * q).sum(1, keepdim=True)
    return p * total, q / (total * total + 1)


def program_of(fd: FusionDefinition) -> KernelProgram:
    """Return the kernel for many rows, of which a thread has 32 elements."""
    caller, inputs = fd._executor_cache()._caller, [torch.empty(8192, 4096, dtype=torch.bfloat16) for _ in range(2)]
    sizes, engine = caller.sizes(inputs, None, current())
    (use,) = sizes.kernels
    return caller.kernels.program(caller.request(use, sizes, engine, current()))


def given(rows: int, columns: int) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(rows + columns)
    return [(torch.randn(rows, columns, generator=made) / 4).to(torch.bfloat16) for _ in range(2)]


def test_only_long_loops_have_a_branch() -> None:
    assert APART in program_of(shares(5)).text
    assert APART not in program_of(shares(0)).text


@pytest.mark.parametrize("shape", [(3, 4096), (5, 4099), (2, 1000)], ids=str)
def test_values(shape: tuple[int, int]) -> None:
    fd, inputs = shares(3, shape), given(*shape)
    with poisoned_outputs(), options(check="races"):
        outs = fd.execute(inputs)
    for out, want in zip(outs, wanted(*inputs, 3), strict=True):
        torch.testing.assert_close(out.double(), want, rtol=2.0**-7, atol=2.0**-8 * float(want.abs().mean()))


def test_a_kernel_that_spills_keeps_iterations_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows that every pass computes again, which is not chosen for such long chains, and of which no other test has six links."""
    monkeypatch.setattr(RowsOf, "recomputed_loss", lambda self: 0.0)
    program = program_of(shares(6))
    unit, tried = translation_unit(program.text, program.blocks), []

    def compile_unit(text: str) -> nvrtc.Compiled:
        tried.append(nvrtc.compile_cubin(text, program.name, "sm_90a", max_registers=48))
        return tried[-1]

    compiled = mixed_or_apart(unit, compile_unit)
    mixed, apart = (made.resources.spill_store_bytes for made in tried)
    assert compiled is tried[1] and mixed > 8 * apart


def compiled(spilled: int) -> SimpleNamespace:
    return SimpleNamespace(resources=SimpleNamespace(spill_store_bytes=spilled))


@pytest.mark.parametrize("spills, chosen, tried", [((8, 0), 8, 1), ((900, 60), 60, 2), ((60, 900), 60, 2)])
def test_the_one_that_spills_less(spills: tuple[int, int], chosen: int, tried: int) -> None:
    """With no second try for a few bytes."""
    made = iter([compiled(spilled) for spilled in spills])
    found = mixed_or_apart(f"if ({APART})", lambda _: next(made))  # type: ignore[arg-type, return-value]
    assert found.resources.spill_store_bytes == chosen and len(list(made)) == 2 - tried


def test_a_text_without_long_loops_is_compiled_once() -> None:
    assert mixed_or_apart("", lambda _: compiled(900)).resources.spill_store_bytes == 900  # type: ignore[arg-type, return-value]
