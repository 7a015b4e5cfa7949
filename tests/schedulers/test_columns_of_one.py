"""Sums over pairs whose terms differ little along the innermost loop: a thread has all columns of it, and computes once what they have in common."""

from __future__ import annotations

import pytest
import torch
from channel_cases import with_params
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.arch import H200
from weft.options import options
from weft.schedulers.cost.passing import passing_ns
from weft.schedulers.cost.reductions import work_of_reductions
from weft.schedulers.facts import ReductionFacts
from weft.schedulers.reduction_heuristic import Candidates, choose

TYPES = {torch.bfloat16: DataType.BFloat16, torch.float32: DataType.Float}


def defined(dtype: torch.dtype, c: int, *, has_matrix: bool = False, second: str = "max") -> FusionDefinition:
    """Sum and maximum, or other reductions, over j of exp(-(w_i - v_j)^2) * (x_ic + y_jc), of which the exponential, times m_ij if wanted, has no c."""
    with FusionDefinition() as fd:
        ops = fd.ops
        given = [ops.cast(fd.define_tensor([-1] * rank, contiguity=True, dtype=TYPES[dtype]), DataType.Float) for rank in (1, 1)]
        given += [ops.cast(fd.define_tensor([-1, c], contiguity=True, dtype=TYPES[dtype]), DataType.Float) for _ in range(2)]
        w, v, x, y = given
        n, m = w.size(0), v.size(0)
        a, b = ops.broadcast_in_dim(w, [n, m, 1], [0]), ops.broadcast_in_dim(v, [n, m, 1], [1])
        d = ops.sub(a, b)
        near = ops.exp(ops.neg(ops.mul(d, d)))
        if has_matrix:
            near = ops.mul(near, ops.broadcast_in_dim(fd.define_tensor([-1, -1, c], contiguity=True), [n, m, c], [0, 1, 2]))
        terms = ops.mul(near, ops.add(ops.broadcast_in_dim(x, [n, 1, c], [0, 2]), ops.broadcast_in_dim(y, [1, m, c], [1, 2])))
        fd.add_output(ops.cast(ops.sum(terms, 1), TYPES[dtype]))
        fd.add_output(getattr(ops, second)(terms, 1))
    return fd


def check(fd: FusionDefinition, dtype: torch.dtype, n: int, m: int, c: int, *, has_matrix: bool = False) -> None:
    made = torch.Generator().manual_seed(n * 7 + m)
    given = [torch.randn(shape, generator=made).to(dtype) for shape in ((n,), (m,), (n, c), (m, c))]
    given += [torch.randn(n, m, c, generator=made)] if has_matrix else []
    with poisoned_outputs(), options(check="races"):
        total, second = fd.execute(given)
    w, v, x, y, *rest = (t.double() for t in given)
    terms = torch.exp(-((w[:, None] - v) ** 2))[..., None] * (rest[0] if rest else 1.0) * (x[:, None] + y)
    torch.testing.assert_close(total.double(), terms.sum(1), rtol=1e-5 if dtype is torch.float32 else 5e-3, atol=1e-3)
    torch.testing.assert_close(second.double(), terms.amax(1) if m else terms.prod(1), rtol=1e-5, atol=1e-5)


def params_of(fd: FusionDefinition):  # type: ignore[no-untyped-def]
    return fd.fec.kernel_runtimes[-1].proposal.params  # type: ignore[attr-defined]


@pytest.mark.parametrize("c", [3, 5, 7])
@pytest.mark.parametrize(("n", "m"), [(37, 301), (1, 5000), (301, 1), (1, 1), (0, 9), (9, 0), (700, 65)])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_as_chosen(dtype: torch.dtype, n: int, m: int, c: int) -> None:
    fd = defined(dtype, c, second="max" if m else "prod")
    check(fd, dtype, n, m, c)
    if n > 1 and m > 1:
        params = params_of(fd)
        assert (params.are_all, params.vector_elems) == (True, c)


@pytest.mark.parametrize("fields", [
    {"bdimx": 32, "bdimy": 4, "unroll": 1}, {"bdimx": 4, "bdimy": 32, "unroll": 8, "unswitch": True}, {"bdimx": 8, "bdimy": 16, "unroll": 2, "grid_split": 3},
    {"bdimx": 16, "bdimy": 8, "unroll": 4, "grid_split": 2, "is_cluster": True}, {"bdimx": 1, "bdimy": 64, "unroll": 4, "grid_split": 5, "unswitch": True},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("c", [3, 8])
def test_ways_to_divide_them(c: int, fields: dict[str, int]) -> None:
    usual = {"grid_split": 1, "is_cluster": False, "unswitch": False, "max_registers": 128}
    fd = with_params(defined(torch.float32, c), **(usual | fields | {"vector_elems": c, "are_all": True}))
    check(fd, torch.float32, 45, 203, c)
    assert params_of(fd).are_all


def test_an_input_with_an_element_for_each_term_is_read_in_vectors_or_one_by_one() -> None:
    fd = defined(torch.float32, 3, has_matrix=True)
    check(fd, torch.float32, 33, 75, 3, has_matrix=True)
    assert not params_of(fd).are_all


def facts(common: int, columns: int = 3, vector: int = 1) -> ReductionFacts:
    return ReductionFacts(
        iteration_elems=3000 * columns, reduction_elems=3000, runs=((True, 3000), (False, 3000 * columns)), vector_limit_elems=vector, max_dtype_bits=32,
        min_dtype_bits=32, vectorizable_inputs=0, input_bits=0, output_bits=0, reductions=1, accumulator_bits=32, instructions=80, mufu=1, has_exp=False,
        has_rng=False, min_vector_elems=1, columns_of_one=columns, common_instructions=common,
    )  # fmt: skip


def test_what_is_common_is_counted_once() -> None:
    """Sums over 3000 x 3000 pairs of points, 3 coordinates each."""
    few, many = Candidates(facts(30), H200), Candidates(facts(70), H200)
    assert (few.are_all, many.are_all) == (False, True)
    assert choose(facts(70), H200).vector_elems == 3
    times = [float(passing_ns(work_of_reductions(c.table(), c.facts, H200), H200).min()) for c in (few, many)]
    assert times[1] < 0.5 * times[0]


@pytest.mark.parametrize(("columns", "vector", "are_all"), [(4, 4, False), (8, 4, True), (9, 1, False), (2, 1, True), (1, 1, False)])
def test_not_more_columns_than_a_thread_should_have(columns: int, vector: int, are_all: bool) -> None:
    assert Candidates(facts(70, columns, vector), H200).are_all is are_all
