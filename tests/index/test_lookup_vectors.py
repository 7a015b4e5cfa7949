"""Vectors of lookups at known positions: no wider than an access, and the kernel says what alignment they ask of the source."""

from __future__ import annotations

import pytest
import torch

from weft import DataType, FusionDefinition


@pytest.mark.parametrize(
    ("source", "target", "loads", "vector"),
    [
        (torch.float32, torch.float32, 1, "load_global_vector<4>"), (torch.float64, torch.float64, 1, "load_global_vector<2>"),
        (torch.float32, torch.bfloat16, 1, "load_global_vector<4>"), (torch.bfloat16, torch.bfloat16, 1, "load_global_vector<8>"),
    ],
)  # fmt: skip
def test_a_slice_is_loaded_in_the_widest_accesses(source: torch.dtype, target: torch.dtype, loads: int, vector: str) -> None:
    types = {torch.float32: DataType.Float, torch.float64: DataType.Double, torch.bfloat16: DataType.BFloat16}
    rows, columns = 512, 2048
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=types[source])
        fd.add_output(fd.ops.cast(fd.ops.mul(fd.ops.slice(x, [0, 16], [rows, 16 + columns]), 2.0), types[target]))
    given = torch.randn(rows, columns + 64).to(source)
    (out,) = fd.execute([given], check="bounds")
    torch.testing.assert_close(out.double(), (given[:, 16 : 16 + columns].double() * 2).to(target).double())
    program = fd.fec.kernel_runtimes[0].program
    assert program.text.count(vector) == loads, program.text
    assert program.alignment_bytes["T0"] == 16
