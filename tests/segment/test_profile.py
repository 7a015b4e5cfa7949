"""Profiles of several steps: one entry each, in order, with the bytes that it moves."""

from __future__ import annotations

import torch

from weft import FusionDefinition
from weft.api.profile import PythonProfiler


def test_kernels_and_torch_ops_are_segments() -> None:
    with FusionDefinition() as fd:
        x, w = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
        y = fd.ops.linear(fd.ops.relu(x), w)
        fd.add_output(fd.ops.sum(y, [1]))
    inputs = [torch.randn(4, 8), torch.randn(6, 8)]
    for _ in range(2):
        with PythonProfiler() as prof:
            (out,) = fd.execute(inputs)
        torch.testing.assert_close(out, (inputs[0].relu() @ inputs[1].t()).sum(1), rtol=1e-4, atol=1e-4)
        profile = prof.profile
        assert profile.segments == len(profile.kernel_profiles) == 3
        assert [k.scheduler for k in profile.kernel_profiles] == ["pointwise", "expr_eval", "reduction"]
        assert [k.segment_id for k in profile.kernel_profiles] == [0, 1, 2]
        assert profile.kernel_profiles[1].name == "linear"
        first, _, last = profile.kernel_profiles
        assert (first.input_bytes, first.output_bytes) == (4 * 8 * 4, 4 * 8 * 4)
        assert (last.input_bytes, last.output_bytes) == (4 * 6 * 4, 4 * 4)
        assert all(k.time_ms > 0 for k in profile.kernel_profiles)
