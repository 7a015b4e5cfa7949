"""Kernels that spill too much are made again by the same scheduler, with fewer elements per thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.arch import MOST_SPILL_BYTES, arch_by_name
from weft.ir.enums import SchedulerType
from weft.options import options
from weft.runtime.engines import EmulatorEngine
from weft.runtime.resources import TooManySpills
from weft.runtime.runtimes import Runtime, forget_kernels
from weft.schedulers import pointwise_heuristic, reduction_heuristic
from weft.schedulers.cost.parts import fitting_elems
from weft.schedulers.reduction_heuristic import ReductionParams

FLOAT, BF16 = DataType.Float, DataType.BFloat16
H200 = arch_by_name("H200")


@pytest.fixture(autouse=True)
def no_known_kernels() -> Iterator[None]:
    forget_kernels()
    yield
    forget_kernels()


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the kernels that are built first spill, in bytes per thread; one entry is taken for each."""
    build, spills = EmulatorEngine.build, list[int]()

    def refusing(self, program, options, **more):  # noqa: ANN001, ANN003, ANN202
        if spills:
            error = TooManySpills(kernel=program.name, bytes=spills[0], registers=255, limit=MOST_SPILL_BYTES)
            error.spilled_bytes = spills.pop(0)
            raise error
        return build(self, program, options, **more)

    monkeypatch.setattr(EmulatorEngine, "build", refusing)
    return spills


def last(fd: FusionDefinition) -> Runtime:
    return list(fd.fec.kernel_runtimes)[-1]


def wave() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=FLOAT)
        fd.add_output(fd.ops.add(fd.ops.sin(x), fd.ops.cos(x)))
    return fd


@pytest.mark.parametrize("spilled, elems", [([], 4), ([1464], 2), ([4000], 1), ([600, 600], 1)])
def test_a_pointwise_kernel_that_spills_has_fewer_elements_per_thread(
    monkeypatch: pytest.MonkeyPatch, refused: list[int], spilled: list[int], elems: int
) -> None:  # fmt: skip
    refused += spilled
    monkeypatch.setattr(pointwise_heuristic.Candidates, "_widths", lambda _, at: [at.vector_elems])
    fd, x = wave(), torch.randn(37, 300, generator=torch.Generator().manual_seed(1))
    with options(strict_schedules=True):
        (made,) = fd.execute([x])
    assert not refused and last(fd).proposal.params.thread_elems <= elems
    assert last(fd).proposal.scheduler is SchedulerType.pointwise
    assert float((made.double() - x.double().sin() - x.double().cos()).abs().max()) < 1e-6


def test_a_pointwise_kernel_that_spills_with_one_element_is_refused(refused: list[int]) -> None:
    refused += [4000] * 8
    with options(strict_schedules=True), pytest.raises(TooManySpills):
        wave().execute([torch.randn(64, 64)])
    assert len(refused) in range(4, 8)  # not asked for the same kernel again and again


@pytest.mark.parametrize("elems, spilled, fitting", [(4, 1464, 2), (4, 0, 2), (8, 1300, 4), (8, 8000, 1), (2, 600, 1), (1, 600, 0), (3, 0, 2), (4, 20000, 0)])
def test_elements_that_have_registers(elems: int, spilled: int, fitting: int) -> None:
    assert fitting_elems(elems, 255, spilled) == fitting


def sums(dim: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x, y = (fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=BF16), FLOAT) for _ in range(2))
        for value in (fd.ops.mul(x, y), fd.ops.mul(x, x), fd.ops.tanh(y)):
            fd.add_output(fd.ops.sum(value, [dim]))
    return fd


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("spilled", [[1260], [1260, 900]])
def test_a_reduction_that_spills_has_more_registers_per_element(refused: list[int], dim: int, spilled: list[int]) -> None:
    generator = torch.Generator().manual_seed(2)
    x, y = (torch.randn(513, 264, generator=generator).bfloat16() for _ in range(2))
    wanted = [v.sum(dim) for v in (x.double() * y.double(), x.double().square(), y.double().tanh())]
    chosen = []
    for spills in ([], spilled):
        forget_kernels()
        refused += spills
        fd = sums(dim)
        with options(strict_schedules=True):
            made = fd.execute([x, y])
        assert not refused and last(fd).proposal.scheduler is SchedulerType.reduction
        for got, want in zip(made, wanted):
            assert float((got.double() - want).abs().max() / want.abs().max()) < 1e-5
        chosen.append(last(fd).proposal.params)
    first, other = (H200.registers_per_thread(p.threads_per_block) / (p.vector_elems * p.unroll * p.results) for p in chosen)
    assert other > first


def test_a_reduction_ends_where_nothing_has_more_registers(refused: list[int]) -> None:
    refused += [4000] * 40
    with options(strict_schedules=True), pytest.raises(TooManySpills):
        sums(0).execute([torch.randn(64, 64).bfloat16()] * 2)
    assert len(refused) > 20


def windows(dim: int | None = None) -> FusionDefinition:
    """Sums of sines of the pixels of a window of 3 x 3 times their values; rows and columns beyond an edge are those at it. dim: the axis that is summed."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=FLOAT)
        rows, columns = ([_near(fd, fd.ops.size(x, dim), step) for step in (-1, 0, 1)] for dim in range(2))
        total = None
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                part = fd.ops.index_select(fd.ops.index_select(x, row, 0), column, 1)
                term = fd.ops.mul(fd.ops.sin(part), fd.ops.add(part, float(i - j)))
                total = term if total is None else fd.ops.add(total, term)
        fd.add_output(total if dim is None else fd.ops.sum(total, [dim]))
    return fd


def of_windows(x: torch.Tensor) -> torch.Tensor:
    rows, columns = (torch.arange(n) for n in x.shape)
    wanted = torch.zeros(x.shape, dtype=torch.float64)
    for i in range(3):
        for j in range(3):
            part = x.double()[(rows + i - 1).clamp(0, x.shape[0] - 1)][:, (columns + j - 1).clamp(0, x.shape[1] - 1)]
            wanted += part.sin() * (part + (i - j))
    return wanted


def _near(fd: FusionDefinition, extent: Any, step: int) -> Any:
    places = fd.ops.add(fd.ops.iota(extent, dtype=DataType.Int), step)
    return fd.ops.minimum(fd.ops.maximum(places, 0), fd.ops.sub(extent, 1))


@pytest.mark.parametrize("most, spilled, lookups", [(9, [300], "late"), (9, [], "early"), (1000, [], "few")])
@pytest.mark.parametrize("shape", [(13, 36), (1, 100), (21, 1), (5, 33), (0, 8)])
def test_many_lookups_are_loaded_where_they_are_used_if_the_kernel_spills(
    monkeypatch: pytest.MonkeyPatch, refused: list[int], shape: tuple[int, int], most: int, spilled: list[int], lookups: str
) -> None:  # fmt: skip
    refused += spilled if shape[1] > 1 else []
    monkeypatch.setattr(pointwise_heuristic, "MOST_EARLY_LOOKUPS", most)
    monkeypatch.setattr(pointwise_heuristic.Candidates, "_widths", lambda _, at: [at.vector_elems])
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    fd = windows()
    with options(strict_schedules=True):
        (made,) = fd.execute([x])
    assert made.shape == shape and torch.allclose(made.double(), of_windows(x), rtol=0, atol=1e-5)
    assert min(shape[0], shape[1] - 1) < 1 or last(fd).proposal.params.lookups == lookups


@pytest.mark.parametrize("most, spilled, lookups", [(9, [300], "late"), (9, [], "early"), (1000, [], "few")])
@pytest.mark.parametrize("shape", [(130, 36), (1, 100), (21, 300), (5, 33), (0, 8)])
@pytest.mark.parametrize("dim", [0, 1])
def test_sums_of_many_lookups(
    monkeypatch: pytest.MonkeyPatch, refused: list[int], dim: int, shape: tuple[int, int], most: int, spilled: list[int], lookups: str
) -> None:  # fmt: skip
    refused += spilled
    monkeypatch.setattr(reduction_heuristic, "MOST_EARLY_LOOKUPS", most)
    x, fd = torch.randn(shape, generator=torch.Generator().manual_seed(4)), windows(dim)
    with options(strict_schedules=True):
        (made,) = fd.execute([x])
    wanted = of_windows(x).sum(dim)
    assert made.shape == wanted.shape and torch.allclose(made.double(), wanted, rtol=1e-5, atol=1e-4)
    params = last(fd).proposal.params if x.numel() else None
    assert not isinstance(params, ReductionParams) or params.kind == "short" or params.lookups == lookups


def test_lookups_at_positions_from_memory_count_too(monkeypatch: pytest.MonkeyPatch, refused: list[int]) -> None:
    refused.append(100)
    monkeypatch.setattr(pointwise_heuristic, "MOST_EARLY_LOOKUPS", 2)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=FLOAT)
        i, j = (fd.define_tensor([-1], contiguity=True, dtype=DataType.Int) for _ in range(2))
        fd.add_output(fd.ops.mul(fd.ops.index_select(x, i, 1), fd.ops.index_select(x, j, 1)))
    x, (i, j) = torch.randn(7, 40), (torch.randint(40, (29,), generator=torch.Generator().manual_seed(n)) for n in range(2))
    with options(strict_schedules=True):
        (made,) = fd.execute([x, i, j])
    assert float((made.double() - x.double()[:, i] * x.double()[:, j]).abs().max()) < 1e-6
    assert last(fd).proposal.params.lookups == "late"
