"""Rows whose lookups no vector serves: how wide the vectors of the other inputs are beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition, compiler
from weft.analysis.lookup_work import LookupWork
from weft.arch import A100, H100, H200, Arch
from weft.graph.normalize import normalize
from weft.options import options
from weft.schedulers.facts import ReductionFacts
from weft.schedulers.lookup_widths import with_best_width, works_of_widths

TYPES = {torch.bfloat16: DataType.BFloat16, torch.float32: DataType.Float}


def lagged(sizes: tuple[int, int], lags: int, width: int, dtype: torch.dtype) -> FusionDefinition:
    """Sums of squared differences of the beginning of each row and of `lags` windows of it."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(sizes), contiguity=True, dtype=TYPES[dtype])
        place = fd.ops.add(*[fd.ops.broadcast(fd.ops.iota(n, 0, 1, dtype=DataType.Int), [d != at for d in range(2)]) for at, n in enumerate((lags, width))])
        found = fd.ops.reshape(fd.ops.index_select(x, fd.ops.reshape(place, [lags * width]), 1), [sizes[0], lags, width])
        first = fd.ops.broadcast(fd.ops.slice(x, [0, 0], [sizes[0], width]), [False, True, False])
        off = fd.ops.sub(*(fd.ops.cast(t, DataType.Float) for t in (found, first)))
        fd.add_output(fd.ops.sum(fd.ops.mul(off, off), [2]))
    return fd


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("sizes", "lags", "width"), [
    ((7, 97), 33, 64), ((2, 512), 5, 256), ((1, 70), 1, 68), ((3, 300), 130, 33), ((0, 96), 4, 32), ((5, 9), 8, 1),
], ids=str)  # fmt: skip
def test_lags(sizes: tuple[int, int], lags: int, width: int, dtype: torch.dtype) -> None:
    x = torch.randn(sizes).to(dtype)
    with poisoned_outputs(), options(check="races"):
        (got,) = lagged(sizes, lags, width, dtype).execute([x])
    terms = (x.double().unfold(1, width, 1)[:, :lags] - x.double()[:, None, :width]).square()
    assert ((got.double() - terms.sum(-1)).abs() <= terms.sum(-1) * torch.finfo(torch.float32).eps * (width + 3)).all()


@pytest.mark.parametrize("arch", [A100, H100, H200], ids=lambda a: a.name)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_lanes_lie_side_by_side_where_few_bytes_are_looked_up_often(dtype: torch.dtype, arch: Arch) -> None:
    """Lanes that are a vector of four float32 apart want words of every fourth bank. Pairs of 16 bits are one word of a bank each."""
    params = compiler.propose(normalize(lagged((2000, 512), 128, 256, dtype).fusion), {}, {}, arch).params
    assert (params.kind, params.vector_elems) == ("inner", {torch.float32: 1, torch.bfloat16: 2}[dtype])


def facts(footprint_elems: int, works: tuple[LookupWork, ...]) -> ReductionFacts:
    return ReductionFacts(
        iteration_elems=1 << 16, reduction_elems=1 << 10, runs=((False, 1 << 16), (True, 1 << 10)), vector_limit_elems=4, max_dtype_bits=32, min_dtype_bits=32,
        vectorizable_inputs=1, input_bits=64, output_bits=0, reductions=1, accumulator_bits=32, instructions=4, mufu=0, has_exp=False, has_rng=False,
        min_vector_elems=1, lookup_works=works, footprint_bits=32 * footprint_elems,
    )  # fmt: skip


def apart(elems: int) -> LookupWork:
    """Lanes a vector apart: n lookups of n words of a bank each."""
    return LookupWork(elems, 1, elems + 1.0, float(elems * elems), 2 + 2 * elems, 0, 0, 0, False)


def test_memory_hides_what_each_element_is_read_once() -> None:
    """With two tensors of 64 M elements, memory takes longer than L1: vectors stay. One element in eight of that, read eight times: they go."""
    works = works_of_widths(4, apart)
    assert [work.loads for work in works] == [1, 2, 4]
    streamed, often = facts(2 << 26, works), facts(2 << 23, works)
    assert with_best_width(streamed, H200) is streamed
    found = with_best_width(often, H200)
    assert (found.window_elems, found.window, found.input_bits) == (1, works[0], 8)


def test_nothing_changes_without_lookups_or_vectors() -> None:
    often = facts(1 << 20, works_of_widths(4, apart))
    for given in (facts(1 << 20, ()), replace(often, vector_limit_elems=1), replace(often, iteration_elems=0)):
        assert with_best_width(given, H200) is given
    assert works_of_widths(1, apart) == ()
