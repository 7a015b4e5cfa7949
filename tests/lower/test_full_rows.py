"""Bounds that a row's length makes superfluous: what is assumed holds for every length, results are right, and a wrong assumption is refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import weft.compiler as compiler
from weft import DataType, FusionDefinition
from weft.arch import H200
from weft.expr import evaluate
from weft.runtime.limits import WrongAssumption, check_limits, launch_sizes


def softmax(dtype: DataType = DataType.BFloat16) -> FusionDefinition:
    """Rows may lie apart, so that each begins anywhere by itself: otherwise odd ones would be read in vectors (`test_row_ends.py`)."""
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor(shape=[-1, -1], contiguity=[False, True], dtype=dtype), DataType.Float)
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims=[1], keepdim=True)))
        fd.add_output(fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, dims=[1], keepdim=True)), dtype))
    return fd


def proposal_for(fd: FusionDefinition, rows: int, columns: int) -> tuple[compiler.Proposal, dict]:
    tensor = fd.fusion.inputs()[0]
    env = {axis.sym: n for axis, n in zip(tensor.get_logical_domain(), (rows, columns))}
    env[tensor.stride_var(0)] = columns
    return compiler.propose(fd.fusion, env, {}, H200), env


LENGTHS = [*range(1, 40), 63, 64, 65, 127, 129, 255, 257, 500, 1002, 1009, 2049, 3001, 4002, 4093, 5001, 8193, 10007, 16385, 32769, 50001, 65537, 100003, 131073]


def test_what_is_assumed_holds_for_every_length():
    fd, programs, fills = softmax(), {}, set()
    for columns in LENGTHS:
        proposal, env = proposal_for(fd, 1000, columns)
        params = proposal.params
        if params not in programs:
            programs[params] = compiler.compile_program(fd.fusion, proposal, DataType.Int32, name="kernel")
        program = programs[params]
        fills.add(params.fill)
        assert not program.assumptions or params.fill != "partial", (columns, params)
        assert all(evaluate(least, env) <= evaluate(most, env) for least, most in program.assumptions), (columns, params)
    assert fills == {"whole", "leading", "partial"}


@pytest.mark.parametrize("columns", [1, 2, 31, 33, 129, 512, 513, 1009, 3000, 4093, 4096, 20001, 65537])
def test_softmax_equals_float64(columns):
    x = torch.randn(3, columns, dtype=torch.bfloat16)
    (out,) = softmax().execute([x])
    torch.testing.assert_close(out.double(), torch.softmax(x.double(), 1), rtol=8e-3, atol=1e-6)


def filled(fd: FusionDefinition, columns: int, fill: str) -> compiler.Proposal:
    proposal, _ = proposal_for(fd, 1000, columns)
    return compiler.Proposal(proposal.scheduler, dataclasses.replace(proposal.params, fill=fill))


def test_a_whole_row_asks_for_nothing_and_a_full_batch_for_its_threads_only():
    fd = softmax()
    asked = {4096: "whole", 4093: "leading"}
    texts = {n: compiler.compile_program(fd.fusion, filled(fd, n, fill), DataType.Int32, name="kernel").text for n, fill in asked.items()}
    assert "if (" not in texts[4096]
    assert texts[4093].count("< 15;") == texts[4093].count("= 15;") > 0  # two loops for each walk over the row


def test_a_length_that_breaks_the_assumption_is_refused():
    fd = softmax()
    env = proposal_for(fd, 1000, 4096)[1]
    program = compiler.compile_program(fd.fusion, filled(fd, 4096, "whole"), DataType.Int32, name="kernel")
    check_limits(program, env, launch_sizes(program, env), H200)
    shorter = {sym: 4088 if n == 4096 else n for sym, n in env.items()}
    with pytest.raises(WrongAssumption, match="kernel was made for"):
        check_limits(program, shorter, launch_sizes(program, shorter), H200)
    program = compiler.compile_program(fd.fusion, filled(fd, 4096, "partial"), DataType.Int32, name="kernel")
    check_limits(program, shorter, launch_sizes(program, shorter), H200)
