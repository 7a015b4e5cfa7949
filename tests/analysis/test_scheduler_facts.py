"""Facts from fusions and sizes: what each scheduler's heuristic gets to see, and why a fusion is declined."""

from __future__ import annotations

import itertools

import example_fusions as ex
import pytest
from quick import LINES_OF_A_MILLISECOND, lines_run
from weft.analysis.loop_axes import Obstacle
from weft.arch import H200
from weft.ir.fusion import Fusion
from weft.schedulers import persistent_heuristic, pointwise_heuristic, reduction_heuristic
from weft.dtypes import DataType
from weft.schedulers.persistent_analysis import analyze_persistent
from weft.schedulers.pointwise_analysis import analyze_pointwise
from weft.schedulers.reduction_analysis import analyze_reduction


def persistent(fusion: Fusion, **sizes: int):
    return analyze_persistent(fusion).facts(ex.sizes(**sizes), {})


def test_rms_norm():
    facts = persistent(ex.rms_norm(), m=2048, n=4096)
    assert (facts.iteration_elems, facts.reduction_elems, facts.runs) == (2048, 4096, ((False, 2048), (True, 4096)))
    assert (facts.is_inner, facts.dimensions, facts.inner_run_elems, facts.vector_limit_elems) == (True, 2, 4096, 8)
    assert (facts.input_bits, facts.output_bits, facts.broadcast_operand_bits, facts.broadcast_operands) == (16, 16, 16, 1)
    assert (facts.persistent_bits, facts.projected_bits, facts.passes, facts.reductions) == (65536, 65536, 2, 1)
    assert not facts.has_exp and not facts.has_rng


def test_softmax_shows_what_projection_costs():
    facts = persistent(ex.softmax(), m=8, n=100)
    assert (facts.persistent_bits, facts.projected_bits, facts.passes) == (3200, 1600, 3)
    assert facts.has_exp and facts.mufu == 1
    assert not facts.recompute_has_exact_exp  # of what is seen in 16 bits two instructions are enough
    exact = persistent(ex.softmax(DataType.Float), m=8, n=100)
    assert exact.recompute_has_exact_exp and exact.instructions > facts.instructions


def test_late_inputs_are_told_apart():
    facts = persistent(ex.late_residual_norm(), m=8, n=128)
    assert (facts.input_bits, facts.late_input_bits) == (32, 16)


def test_the_alignment_of_an_input_reaches_the_vector():
    fusion = ex.rms_norm()
    facts = analyze_persistent(fusion).facts(ex.sizes(m=8, n=128), {fusion.inputs()[0].name: 32})
    assert facts.vector_limit_elems == 2


def test_column_sums_are_outer_reductions():
    facts = analyze_reduction(ex.column_sum()).facts(ex.sizes(m=100, n=64), {})
    assert (facts.is_inner, facts.runs, facts.iteration_elems, facts.reduction_elems) == (False, ((True, 100), (False, 64)), 64, 100)


def test_results_do_not_narrow_the_vector_of_the_operands():
    facts = analyze_reduction(ex.batch_statistics([0, 2, 3, 1])).facts(ex.sizes(n=4, c=64, h=7, w=7), {})
    assert (facts.vector_limit_elems, facts.max_dtype_bits) == (8, 16)


def test_channels_last_makes_batch_statistics_an_outer_reduction():
    sizes = ex.sizes(n=4, c=64, h=7, w=7)
    first = analyze_reduction(ex.batch_statistics()).facts(sizes, {})
    last = analyze_reduction(ex.batch_statistics([0, 2, 3, 1])).facts(sizes, {})
    assert (first.dimensions, first.is_inner, first.runs) == (3, True, ((True, 4), (False, 64), (True, 49)))
    assert (last.dimensions, last.is_inner, last.runs) == (2, False, ((True, 196), (False, 64)))


def test_pointwise_facts():
    facts = analyze_pointwise(ex.bias_gelu()).facts(ex.sizes(m=3, n=64), {})
    assert (facts.extents_elems, facts.vector_limit_elems, facts.full_inputs, facts.vectorizable_inputs) == ((3, 64), (8, 8), 1, 2)


def test_what_moves_while_the_inner_loops_run_once():
    """A bias of columns is read again for each row; a scale of rows is not, so that only the loop over rows counts it."""
    assert analyze_pointwise(ex.bias_gelu()).facts(ex.sizes(m=3, n=64), {}).right_bits == (16 + 16 + 16, 16 + 16 + 16)
    assert analyze_pointwise(ex.scale_rows()).facts(ex.sizes(m=3, n=64), {}).right_bits == (16 + 16 + 32, 16 + 16)


def test_scalars_of_zero_dimensions_have_facts():
    fusion = Fusion()
    ex.output(ex.op("neg", ex.tensor(fusion, [], ex.F32)))
    facts = analyze_pointwise(fusion).facts({}, {})
    assert facts.total_elems == 1
    assert pointwise_heuristic.choose(facts, H200).vector_elems == 1


@pytest.mark.parametrize(
    "analyze, make, word",
    [
        (analyze_pointwise, ex.row_sum_only, "reduces"),
        (analyze_reduction, ex.rms_norm, "broadcast back over the reduced axes"),
        (analyze_reduction, ex.bias_gelu, "nothing is reduced"),
        (analyze_persistent, ex.row_sum_only, "no reduction's result"),
        (analyze_persistent, ex.norm_backward, "reduce different axes"),
    ],
)
def test_what_does_not_apply_says_why(analyze, make, word):
    found = analyze(make())
    assert isinstance(found, Obstacle) and word in found.reason


def test_outputs_with_nothing_in_common_are_declined():
    fusion = Fusion()
    ex.output(ex.op("neg", ex.tensor(fusion, ["m"], ex.F32)))
    ex.output(ex.op("neg", ex.tensor(fusion, ["n"], ex.F32)))
    assert "share no tensor" in analyze_pointwise(fusion).reason


def test_rms_norm_kernels_are_reused_as_users_expect():
    """One kernel serves (2048, 4096), (2056, 4096) and (2056, 4088); (2056, 4104) and (2048, 1280) need others."""
    analysis = analyze_persistent(ex.rms_norm())
    params = {s: persistent_heuristic.choose(analysis.facts(ex.sizes(m=s[0], n=s[1]), {}), H200) for s in ((2048, 4096), (2056, 4096), (2056, 4088), (2056, 4104), (2048, 1280))}
    first = params[2048, 4096]
    assert params[2056, 4096] == first and params[2056, 4088] == first and hash(params[2056, 4088]) == hash(first)
    assert params[2056, 4104] != first
    assert params[2048, 1280] not in (first, params[2056, 4104])


def test_a_new_shape_costs_no_walk_over_the_fusion():
    """Facts and choice for a new shape take about a millisecond each."""
    analysis = analyze_persistent(ex.layer_norm(two_passes=True))
    reduction = analyze_reduction(ex.column_sum())
    widths = itertools.count(4096, 8)  # another one in each call
    for run in (
        lambda n: persistent_heuristic.choose(analysis.facts(ex.sizes(m=4096, n=n), {}), H200),
        lambda n: reduction_heuristic.choose(reduction.facts(ex.sizes(m=4096, n=n), {}), H200),
    ):
        assert lines_run(lambda run=run: run(next(widths))) < 2 * LINES_OF_A_MILLISECOND
