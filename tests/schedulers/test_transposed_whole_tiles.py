"""Transposes of odd rows: tiles that one statement moves, whose rows begin with a sector of the output."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs
from test_transpose import declared, numbers, params_of, permuted, rows_first

from weft import DataType, FusionDefinition
from weft.arch import arch_by_name
from weft.compiler import prepare
from weft.options import options
from weft.schedulers.transpose import Transpose, TransposeParams


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles are moved whole, whatever the cost model says and however many of them are mostly empty."""
    ranked = Transpose._ranked
    monkeypatch.setattr("weft.schedulers.transpose.WHOLE_FILLED", 0)
    monkeypatch.setattr("weft.schedulers.transpose.SHIFTED_WORD_BITS", 128)

    def kept(self: Transpose, *given: Any) -> tuple[list[TransposeParams], list[float]]:
        found = [(p, ns) for p, ns in zip(*ranked(self, *given)) if p.is_whole]
        return [p for p, _ in found], [ns for _, ns in found]

    monkeypatch.setattr(Transpose, "_ranked", kept)


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("shape", [(1, 67, 131), (3, 129, 257), (2, 45, 33), (1, 140, 63)])
def test_odd_matrices(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = numbers(*shape, dtype=dtype)
    fd, out = permuted([x], [0, 2, 1])
    assert torch.equal(out, x.transpose(1, 2)) and params_of(fd).is_whole


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("shape", [(70, 128), (128, 70), (256, 129), (129, 256)])
def test_one_side_is_whole_vectors(shape: tuple[int, ...]) -> None:
    x = numbers(*shape, dtype=torch.bfloat16)
    fd, out = permuted([x], [1, 0])
    assert torch.equal(out, x.t()) and params_of(fd).is_whole


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("first", [1, 3, 6])
def test_memory_that_begins_within_a_vector(first: int) -> None:
    x = numbers(65 * 131 + first, dtype=torch.bfloat16)[first:].view(65, 131)
    _, out = permuted([x], [1, 0])
    assert torch.equal(out, x.t())


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize(
    "shape, dims", [((2, 35, 7, 9), [0, 2, 3, 1]), ((2, 7, 9, 35), [0, 3, 1, 2]), ((40, 3, 133), [2, 1, 0]), ((3, 4, 33, 35), [1, 0, 3, 2])]
)
def test_runs_and_batches_of_axes(shape: tuple[int, ...], dims: list[int]) -> None:
    x = numbers(*shape, dtype=torch.bfloat16)
    fd, out = permuted([x], dims)
    assert torch.equal(out, x.permute(dims)) and params_of(fd).is_whole


@pytest.mark.usefixtures("whole")
def test_one_definition_serves_many_odd_sizes() -> None:
    with FusionDefinition() as fd:
        x = declared(fd, torch.empty(2, 2, dtype=torch.bfloat16))
        fd.add_output(rows_first(fd, x, [1, 0]))
    for rows, columns in [(67, 41), (33, 131), (257, 65), (45, 301)]:
        x = numbers(rows, columns, dtype=torch.bfloat16)
        with poisoned_outputs(), options(check="races"):
            (out,) = fd.execute([x])
        assert torch.equal(out, x.t())
    assert len(fd.fec.kernel_runtimes) == 1


@pytest.mark.parametrize("sizes, is_whole", [((64, 1023, 1025), True), ((64, 1024, 1025), True), ((64, 1028, 1024), True), ((64, 1024, 1026), False), ((64, 1024, 1024), False), ((512, 49, 2048), False)])
def test_whole_tiles_are_chosen_where_rows_begin_within_vectors(sizes: tuple[int, ...], is_whole: bool) -> None:
    """Not where inputs come in words and outputs leave in whole vectors, nor where tiles would be mostly empty."""
    with FusionDefinition() as fd:
        fd.add_output(rows_first(fd, fd.define_tensor(shape=list(sizes), contiguity=True, dtype=DataType.BFloat16), [0, 2, 1]))
    prepared = prepare(fd.fusion)
    analysis = prepared.analysis(Transpose())
    params, _ = Transpose().choose(analysis, {}, {}, arch_by_name("H200"))
    assert params.is_whole is is_whole


def test_rows_with_gaps_take_the_other_kernels() -> None:
    """Rows of a view are apart in memory."""
    apart = numbers(1100, 1201, dtype=torch.bfloat16)[:, :1105]
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[False, True], dtype=DataType.BFloat16)
        fd.add_output(rows_first(fd, x, [1, 0]))
    (out,) = fd.execute([apart])
    assert torch.equal(out, apart.t()) and not params_of(fd).is_whole
