"""What schedulers choose from is counted in bits: bytes that move, buffers, limits of vectors; a vector follows the narrow side where that is faster."""

from __future__ import annotations

import re

import pytest

from weft import DataType, FusionDefinition
from weft.check.records import programs
from weft.schedulers.persistent_analysis import analyze_persistent
from weft.schedulers.pointwise_analysis import analyze_pointwise

FP4, E4M3, BF16, FLOAT = DataType.Float4_e2m1fn, DataType.Float8_e4m3fn, DataType.BFloat16, DataType.Float
ROWS, COLUMNS = 4096, 8192


def softmax_in(kind: DataType) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=kind), FLOAT)
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], True)))
        fd.add_output(fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, [1], True)), kind))
    return fd


def cast_of(source: DataType, target: DataType) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=source)
        fd.add_output(fd.ops.set(x) if source is target else fd.ops.cast(x, target))
    return fd


def sizes(fd: FusionDefinition) -> dict:
    return {axis.sym: extent for t in fd.fusion.inputs() for axis, extent in zip(t.get_logical_domain(), (ROWS, COLUMNS))}


def vector_of(fd: FusionDefinition, source: DataType) -> int:
    (made,) = programs(fd, [(ROWS, COLUMNS // source.elems_per_unit)])
    return int(re.search(r"vector_elems=(\d+)", made.params)[1])


@pytest.mark.parametrize("kind", [FP4, E4M3, BF16, FLOAT], ids=lambda d: d.name)
def test_rows_are_counted_in_bits(kind):
    fd = softmax_in(kind)
    facts = analyze_persistent(fd.fusion).facts(sizes(fd), {})
    assert (facts.input_bits, facts.output_bits, facts.max_dtype_bits) == (kind.bits,) * 3
    assert facts.projected_bits == COLUMNS * kind.bits and facts.persistent_bits == COLUMNS * 32  # inputs kept, or their values in Float
    assert facts.vector_limit_elems == 128 // kind.bits == vector_of(fd, kind)


def test_a_copy_of_4_bits_moves_32_elements_at_once():
    fd = cast_of(FP4, FP4)
    facts = analyze_pointwise(fd.fusion).facts(sizes(fd), {})
    assert (facts.read_bits, facts.written_bits) == (4, 4) and vector_of(fd, FP4) == 32


@pytest.mark.parametrize("source, target, elems", [(BF16, FP4, 16), (FLOAT, FP4, 8), (FP4, BF16, 8), (FP4, FLOAT, 4), (BF16, E4M3, 8), (FLOAT, E4M3, 8), (E4M3, BF16, 8)], ids=str)
def test_the_vector_follows_the_narrow_side_of_what_is_read(source, target, elems):
    """Two accesses of a wider input for 64 bits of the narrow result, or 256 in all; a wider result is stored at once."""
    assert vector_of(cast_of(source, target), source) == elems
