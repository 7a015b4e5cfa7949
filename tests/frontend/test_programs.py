"""A part of programs.py: programs of users are right in kernels, nothing falls back, and a profile would tell the source line and bytes of every region."""

from __future__ import annotations

import pytest
from program_run import judged
from programs import PROGRAMS

NAMES = (
    "optimizer_compiled", "hooks", "dropout_with_a_seed", "some_outputs_used", "python_values", "several_threads", "complex_rotation",
    "quantized_linear", "stances_and_errors", "preferences", "speculation", "snapshots_of_state", "streams_in_chunks", "layerwise_optimizer", "observers_of_ranges",
    "arguments_and_their_parts_written", "teacher_and_student", "filter_of_sounds",
)  # fmt: skip


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", NAMES)
def test_a_program_is_right_and_its_regions_have_source_lines(name: str) -> None:
    out = judged(PROGRAMS[name])
    assert not out.problem and not out.nameless
    if name == "optimizer_compiled":  # lists of tensors, too
        assert out.covered == out.compute and {why for _, why in out.torch_ops.values()} <= {"it is on the CPU"}
