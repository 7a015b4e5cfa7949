"""docs/adding_a_type.md is true: the package with what the page adds has the type, on the host, in the emulator and for GPUs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding_a_type.md").read_text(encoding="utf-8")
INSERTED = re.compile(r"In `([^`]+)`, below `([^\n]+)`:\n```\w+\n(.*?)```", re.DOTALL)
EXAMPLE = re.compile(r"```python\n(import torch.*?)```", re.DOTALL)
MORE = """
from weft.check.records import make_record
from weft.ops import blocks

kind = DataType.Float8_e3m4fn
every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).view(256, 256)
assert torch.equal(fd.execute([every])[0], narrow.codes_of(every, kind))  # NaN and infinities are among them
with FusionDefinition() as up:
    codes = up.define_tensor([-1], contiguity=True, dtype=kind)
    wide = up.ops.cast(codes, DataType.Float)
    up.add_output(wide)
    up.add_output(up.ops.cast(up.ops.add(wide, 0.0), kind))
codes = torch.arange(256, dtype=torch.uint8)
values, again = up.execute([codes])
assert torch.equal(values.double().nan_to_num(99), narrow.values_of_codes(codes, kind).nan_to_num(99))
assert torch.equal(again[:128], codes[:128]) and torch.equal(again[129:255], codes[129:255])  # -0 + 0 is 0, and NaN has one code
assert values[126] == 30 and values[1] == 2.0**-6 and kind.record.mantissa_bits == 4 and kind.record.exponent_bits == 3
record = make_record({"up": (up, [(256,)])}, ("sm_80", "sm_90a", "sm_100a"))["cases"]["up"]
assert [machine["spill_store_bytes"] for machine in record["kernels"][0]["machine"].values()] == [0, 0, 0], record
with FusionDefinition() as mx:
    x = mx.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16)
    elements, scales = blocks.mx(mx.fusion, x, kind, blocks.BlockFormat())
    mx.add_output(elements)
    mx.add_output(mx.ops.block_sample(scales, 32))
x = torch.randn(4, 64).bfloat16()
elements, scales = mx.execute([x])
spread = torch.exp2(scales.view(torch.uint8).double() - 127).repeat_interleave(32, 1)
assert ((narrow.values_of_codes(elements, kind) * spread - x.double()).abs() <= spread / 2).all()  # half a step of the largest octave, 16 to 30
"""


def test_the_page_adds_a_type_in_two_files(tmp_path):
    shutil.copytree(ROOT / "weft", tmp_path / "weft", ignore=shutil.ignore_patterns("__pycache__"))
    insertions = INSERTED.findall(PAGE)
    assert len(insertions) == 9 and len({name for name, _, _ in insertions}) == 2
    for name, anchor, text in insertions:
        path = tmp_path / name
        before, found, after = path.read_text(encoding="utf-8").partition(anchor + "\n")
        assert found and anchor + "\n" not in after, f"{name} has not one line {anchor!r}"
        path.write_text(before + found + text + after, encoding="utf-8")
    (example,) = EXAMPLE.findall(PAGE)
    script = tmp_path / "example.py"
    script.write_text(example + MORE, encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
