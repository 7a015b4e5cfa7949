"""Bits per element are generic: with a record of 6 bits, quantities are those of 4 elements in 3 bytes, without another line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft import DataType, FusionDefinition, dtypes
from weft.runtime.outputs import OddOutput, layout_of
from weft.schedulers.packed import min_vector_elems, thread_vector_bits

FP4 = DataType.Float4_e2m1fn


@pytest.fixture
def six_bits(monkeypatch):
    """A type of 6 bits (e2m3: largest 7.5) in the place of that of 4; torch has none, so that tensors at the border would need a type of ours."""
    record = replace(dtypes.RECORDS[FP4], bits=6, largest=7.5, unit_roundoff=2.0**-4)
    monkeypatch.setitem(dtypes.RECORDS, FP4, record)
    monkeypatch.setitem(dtypes._BITS, FP4, 6)
    return record


def output(elems: int):  # noqa: ANN201
    with FusionDefinition() as fd:
        x = fd.define_tensor([3, elems], contiguity=True, dtype=DataType.Float)
        y = fd.ops.cast(x, FP4)
        fd.add_output(y)
    return fd, y


def test_a_record_of_six_bits(six_bits):
    assert six_bits.elems_per_unit == FP4.elems_per_unit == 4 and FP4.is_packed and FP4.bits == 6 and FP4.is_narrow_float
    fd, y = output(32)
    assert min_vector_elems([y]) == 4  # a thread writes whole bytes: 4 elements in 3
    assert thread_vector_bits([y], [y]) // FP4.bits * FP4.bits <= 128
    layout = layout_of(y, {})
    assert layout.sizes == (3, 32) and layout.unit == 4 and layout.packed == 1 and layout.torch_sizes == (3, 8)
    for odd in (34, 31):
        fd, y = output(odd)
        with pytest.raises(OddOutput, match=f"it has {odd} elements along the axis that is innermost in memory"):
            layout_of(y, {})


def test_four_bits_are_back():
    assert FP4.bits == 4 and FP4.elems_per_unit == 2
