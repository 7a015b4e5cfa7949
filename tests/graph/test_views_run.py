"""Definitions over views, run in the emulator with all checks, against torch in float64."""

from __future__ import annotations

import pytest
import torch
from view_cases import CASES, DIVIDED, SHIFTED, Case


def check(case: Case, fd, inputs: list[torch.Tensor]) -> None:
    outs = fd.execute(inputs)
    for out, expected in zip(outs, case.expected(inputs), strict=True):
        assert out.shape == expected.shape
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_it_runs_in_one_kernel(name: str) -> None:
    case = CASES[name]
    fd = case.define()
    check(case, fd, case.inputs())
    assert len(fd.fec.kernel_runtimes) == case.kernels


@pytest.mark.parametrize("name", DIVIDED)
def test_what_does_not_factor_runs_in_several_kernels(name: str) -> None:
    case = DIVIDED[name]
    check(case, case.define(), case.inputs())


@pytest.mark.parametrize("name", SHIFTED)
def test_shifted_reads_run(name: str) -> None:
    case = SHIFTED[name]
    fd = case.define()
    check(case, fd, case.inputs())


@pytest.mark.parametrize("dim", [0, 1])
def test_a_shifted_input_is_read_again_by_a_later_pass(dim: int) -> None:
    """Two lookups of one source at the same positions have the same axes, though the source has not."""

    def build(o, x):
        v = o.pad(x, [-1, 0, 1, 0])
        return o.sum(o.sub(v, o.max(v, [dim], True)), [dim], True)

    def reference(x):
        v = torch.nn.functional.pad(x, [-1, 0, 1, 0])
        return (v - v.amax(dim, keepdim=True)).sum(dim, keepdim=True)

    case = Case(((3, 33),), build, reference)
    check(case, case.define(), case.inputs())
