"""What users see of compiled graphs with torch's own tools: TORCH_LOGS, TORCH_TRACE (which tlparse reads), the profiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from weft.frontend.backend import backend

PROGRAM = """
import torch
from weft.frontend.backend import backend
model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.GELU())
torch.compile(model, backend=backend, options={"emulate": True, "cache": False})(torch.randn(4, 8)).sum().backward()
"""


def run(tmp_path: Path, **environment: str) -> str:
    """Run the program in a process of its own and return what it writes to stderr."""
    known = {"WEFT_CACHE_DIR": str(tmp_path / "cache"), "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=os.environ | known | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_logs_say_how_many_nodes_regions_hold_and_traces_which(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    text = run(tmp_path, TORCH_LOGS="+weft.frontend", TORCH_TRACE=str(folder))
    assert "forward graph: 1 regions hold 8 of 8 compute nodes" in text and "backward graph: 1 regions hold" in text
    (trace,) = folder.iterdir()
    lines = trace.read_text(encoding="utf-8").splitlines()
    found = {}
    for number, line in enumerate(lines):
        if '"artifact"' in line and "weft_" in line:
            name = json.loads(line[line.index("{") :])["artifact"]["name"]
            found[name] = lines[number + 1].strip()
    assert found.keys() == {"weft_forward_regions", "weft_backward_regions"}
    assert found["weft_forward_regions"].startswith("graph (forward): 8 of 8 compute nodes in 1 regions")


@pytest.mark.usefixtures("fresh")
def test_profiles_have_the_module_line_and_bytes_of_each_region(tmp_path: Path) -> None:
    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.inner(x))

    fast = torch.compile(Norm(), backend=backend, options={"emulate": True})
    x = torch.randn(4, 8, requires_grad=True)
    fast(x).sum().backward()
    with torch.profiler.profile(record_shapes=True) as profile:
        fast(x).sum().backward()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    forward, backward = (event for event in events if event.get("name", "").startswith("weft_"))
    assert forward["name"] == "weft_var_mean_add_rsqrt_sub_mul_tanh" and backward["name"].startswith("weft_")
    assert forward["args"]["kernel_backend"] == "weft" and forward["args"]["bytes"] == 4 * (4 * 8 * 2 + 8 * 2)  # x, y; weight, bias
    assert forward["args"]["origin"].startswith("inner ") and "test_told.py:" in forward["args"]["origin"] and "tanh" in forward["args"]["origin"]
