"""Whole schedules, as the schedulers make them: what each tensor's loops and position become, and that random ones are legal."""

from __future__ import annotations

import random

import pytest

from weft.errors import WeftError
from weft.ir.enums import ParallelType
from weft.ir.fusion import Fusion
from weft.ir.values import TensorView
from weft.ops.reductions import var_mean
from weft.ops.shapes import permute
from weft.schedule.caching import cache_and_fork_outputs, cache_inputs
from weft.schedule.inline import inline_at, inline_most
from weft.schedule.primitives import merge, reorder, rfactor, split
from weft.schedule.propagate import parallelize_like, transform_like
from weft.schedule.recompute import recompute_chain
from weft.schedule.welford import translate_welford

from schedule_scenarios import BF16, check_schedule, computed, fold, loops, op, reductions, rms_norm, softmax, tensor, up

P = ParallelType
ROW = "i:grid_x[n] i[4] i:unswitch[1] i:block_x[ceildiv(ceildiv(m, 8), 4)] i[8]"


def schedule_rows(fusion: Fusion, batch: int = 4, width: int = 8) -> list[TensorView]:
    """Inner persistent: [BIDx | batch, US 1, TIDx, V], one block per row; return the first parts of the reductions."""
    inputs, outputs = cache_inputs(fusion), cache_and_fork_outputs(fusion)
    first, *others = reductions(fusion)
    split(first, 1, width)
    split(first, 1, batch, inner_split=False)
    split(first, 1, 1)
    transform_like(first)
    parts = [rfactor(t, [1, 2, 4]) for t in (first, *others)]
    reference = parts[0]
    reference.axis(0).parallelize(P.grid_x)
    reference.axis(2).parallelize(P.unswitch)
    reference.axis(3).parallelize(P.block_x)
    reference.axis(3).pad_to_multiple_of_warp()
    transform_like(reference)
    parallelize_like(reference)
    for t in [cache for _, cache in inputs] + [output for _, output in outputs]:
        t.axis(-1).parallelize(P.vectorize)
    inline_most(fusion=fusion)
    return parts


def by_op(fusion: Fusion) -> list[tuple[str, int]]:
    return [(e.op_name, e.outputs[0].compute_at) for e in fusion.tensor_exprs()]  # type: ignore[attr-defined]


def test_softmax():
    fusion = softmax(BF16)
    parts = schedule_rows(fusion)
    assert {loops(p) for p in parts} == {ROW.replace("i[4]", "r[4]").replace("i:unswitch", "r:unswitch").replace("i[8]", "r[8]")}
    assert by_op(fusion) == [
        ("set", 4), ("cast", 1),  # the row, kept for the exponential
        ("max", 1), ("max", 1), ("broadcast", 5), ("sub", 5), ("exp", 1),  # kept for the division
        ("sum", 1), ("sum", 1), ("broadcast", 5), ("div", 5), ("cast", 4), ("set", 0),
    ]  # fmt: skip
    pointwise = [t for t in computed(fusion) if t.definition().op_name in ("cast", "sub", "exp", "div")]
    assert {loops(t) for t in pointwise} == {ROW}
    check_schedule(fusion)


def test_softmax_that_keeps_its_input_only():
    fusion = softmax(BF16)
    cache_inputs(fusion)
    division = next(e for e in fusion.tensor_exprs() if e.op_name == "div")
    difference = next(e for e in fusion.tensor_exprs() if e.op_name == "sub")
    recompute_chain(division.inputs[0], division)
    recompute_chain(difference.inputs[0], difference)
    schedule_rows(fusion)
    kept = [e.outputs[0] for e in fusion.tensor_exprs() if e.op_name in ("cast", "sub", "exp") and e.outputs[0].compute_at < 4]
    assert kept == []
    copies = [e.outputs[0] for e in fusion.tensor_exprs() if e.op_name == "set"]
    assert [t.compute_at for t in copies] == [4, 1, 0]  # vector load; the row; vector store
    check_schedule(fusion)


def test_rms_norm():
    fusion = rms_norm(BF16)
    schedule_rows(fusion)
    weight = fusion.inputs()[1].uses()[0].outputs[0]
    assert loops(weight) == "i[4] i:unswitch[1] i:block_x[ceildiv(ceildiv(m, 8), 4)] i:vectorize[8]"
    assert by_op(fusion) == [
        ("set", 4), ("cast", 1),
        ("mul", 5), ("sum", 1), ("sum", 1), ("broadcast", 5), ("mul", 5), ("add", 5), ("rsqrt", 5), ("mul", 5),
        ("set", 3), ("cast", 4), ("broadcast", 5), ("mul", 5), ("cast", 4), ("set", 0),
    ]  # fmt: skip
    check_schedule(fusion)


def test_layer_norm_by_two_passes():
    fusion = Fusion()
    x = up(tensor(fusion, "n", "m", dtype=BF16))
    variance, mean = var_mean(fusion, x, [1], correction=0, keepdim=True)
    fusion.add_output(op("mul", op("sub", x, mean), op("rsqrt", op("add", variance, 1e-5))))
    translate_welford(fusion)
    parts = schedule_rows(fusion)
    assert len(parts) == 2 and {loops(p) for p in parts} == {loops(parts[0])}
    rows = [t for t in computed(fusion) if loops(t) == ROW]
    assert [t.definition().op_name for t in rows if t.compute_at == 1] == ["cast"]
    check_schedule(fusion)


def test_pointwise_in_one_dimension():
    """[BIDx, US 1, TIDx 128, V]; a broadcast input has the same loops as far as it has the axes."""
    fusion = Fusion()
    x, row, bias = tensor(fusion, 64, 1024), tensor(fusion, 64, 1), tensor(fusion, 1024)
    y = op("exp", op("add", op("mul", x, row), bias))
    fusion.add_output(y)
    inputs, ((inner, _),) = cache_inputs(fusion), cache_and_fork_outputs(fusion)
    merge(y, 0, 1)
    split(split(split(y, 0, 4), 0, 128), 0, 1)
    y.axis(0).parallelize(P.grid_x)
    y.axis(1).parallelize(P.unswitch)
    y.axis(2).parallelize(P.block_x)
    transform_like(y)
    parallelize_like(y)
    for t in (inputs[0][1], y):
        t.axis(-1).parallelize(P.vectorize)
    inline_at(y, 2, best_effort=True)
    caches = [cache for _, cache in inputs]
    assert [t.compute_at for t in (*caches, inner)] == [2, 2, 2, 2]
    inline_most(except_tensors=[*caches, inner], fusion=fusion)
    assert loops(inner) == "i:grid_x[128] i:unswitch[1] i:block_x[128] i[4]"
    assert [loops(c) for c in caches] == [
        "i:grid_x[128] i:unswitch[1] i:block_x[128] i:vectorize[4]",
        "i:grid_x[1] i:unswitch[1] i:block_x[128] i[4]",  # 64 rows
        "i:grid_x[2] i:unswitch[1] i:block_x[128] i[4]",
    ]
    assert all(t.compute_at == 4 for t in computed(fusion) if t not in (*caches, inner, y))
    check_schedule(fusion)


def test_pointwise_in_two_dimensions():
    """[BIDy | BIDx, US 1, TIDx, V]: the left loops are not there in a tensor over the right axis."""
    fusion = Fusion()
    x, bias = tensor(fusion, "n", "h", "w"), tensor(fusion, "w")
    y = op("add", x, bias)
    fusion.add_output(y)
    inputs, _ = cache_inputs(fusion), cache_and_fork_outputs(fusion)
    merge(y, 0, 1)
    split(split(split(y, 1, 4), 1, 32), 1, 1)
    for position, kind in enumerate((P.grid_y, P.grid_x, P.unswitch, P.block_x)):
        y.axis(position).parallelize(kind)
    transform_like(y)
    parallelize_like(y)
    inline_most(fusion=fusion)
    assert loops(inputs[1][1]) == "i:grid_x[ceildiv(ceildiv(w, 4), 32)] i:unswitch[1] i:block_x[32] i[4]"
    assert inputs[1][1].compute_at == 4 and inputs[0][1].compute_at == 5
    check_schedule(fusion)


def test_a_permuted_tensor():
    fusion = Fusion()
    x = op("neg", tensor(fusion, "n", "m"))
    y = op("exp", permute(fusion, x, [1, 0]))
    fusion.add_output(y)
    cache_inputs(fusion)
    split(split(y, 1, 8), 0, 16)
    transform_like(y)
    assert loops(x) == loops(y) == "i[ceildiv(m, 16)] i[16] i[ceildiv(n, 8)] i[8]"
    inline_most(fusion=fusion)
    assert x.compute_at == 4
    check_schedule(fusion)


def test_an_outer_reduction():
    """[BIDx, TIDx, V | rest, TIDy]: columns are cut into vectors, rows are reduced by each thread and then over threadIdx.y."""
    fusion = Fusion()
    x = up(tensor(fusion, "n", "m", dtype=BF16))
    fusion.add_output(fold("sum", x, 0))
    inputs, _ = cache_inputs(fusion), cache_and_fork_outputs(fusion)
    (s,) = reductions(fusion)
    reorder(s, {0: 1})
    split(split(s, 0, 8), 0, 32)
    split(s, 3, 16)
    part = rfactor(s, [3])
    for position, kind in ((0, P.grid_x), (1, P.block_x), (4, P.block_y)):
        part.axis(position).parallelize(kind)
    reorder(part, {2: 4})
    transform_like(part)
    parallelize_like(part)
    inputs[0][1].axis(-1).parallelize(P.vectorize)
    inline_most(fusion=fusion)
    assert loops(part) == "i:grid_x[ceildiv(ceildiv(m, 8), 32)] i:block_x[32] r[ceildiv(n, 16)] i:block_y[16] i[8]"
    assert loops(s) == "i:grid_x[ceildiv(ceildiv(m, 8), 32)] i:block_x[32] r:block_y[16] i[8]"
    assert inputs[0][1].compute_at == 4 and part.compute_at == 2 and s.compute_at == 2
    check_schedule(fusion)


def test_a_reduction_of_outer_and_inner_axes():
    """Batch norm's statistics: [n, c, s] over n and s."""
    fusion = Fusion()
    x = op("neg", tensor(fusion, 8, "c", 64))
    total = fold("sum", x, 0, 2, keepdim=True)
    fusion.add_output(op("sub", x, total))
    cache_inputs(fusion)
    cache_and_fork_outputs(fusion)
    (s,) = reductions(fusion)
    reorder(s, {1: 0})
    merge(s, 1, 2)
    split(s, 1, 128)
    transform_like(s)
    part = rfactor(s, [1])
    part.axis(0).parallelize(P.grid_x)
    part.axis(2).parallelize(P.block_x)
    transform_like(part)
    parallelize_like(part)
    inline_most(fusion=fusion)
    assert loops(x) == "i:grid_x[c] i[4] i:block_x[128]"
    wide = next(e.outputs[0] for e in fusion.tensor_exprs() if e.op_name == "broadcast")
    assert loops(wide) == "i:grid_x[c] b[1] b:block_x[128]"
    assert (x.compute_at, part.compute_at, wide.compute_at) == (1, 1, 3)
    check_schedule(fusion)


# ---------------------------------------------------------------- random fusions
def random_fusion(rng: random.Random) -> Fusion:
    """Pointwise ops, reductions with and without keepdim, and broadcasts over tensors of up to three axes."""
    fusion = Fusion()
    sizes = ["a", "b", "c"][: rng.randint(2, 3)]
    pool = [tensor(fusion, *sizes), tensor(fusion, *sizes)]
    if rng.random() < 0.7:
        pool.append(tensor(fusion, sizes[-1]))
    if rng.random() < 0.4:
        pool.append(tensor(fusion, *(s if rng.random() < 0.5 else 1 for s in sizes)))
    for _ in range(rng.randint(3, 9)):
        x = rng.choice(pool)
        choice = rng.random()
        if choice < 0.3:
            pool.append(op(rng.choice(["neg", "exp"]), x))
        elif choice < 0.7:
            whole = [t for t in pool if t.ndim == len(sizes)]
            suffix = [t for t in pool if t.ndim == 1 and str(t.get_logical_domain()[0].sym) == sizes[-1]]
            pool.append(op("add", rng.choice(whole), rng.choice(whole + suffix)))
        elif x.ndim == len(sizes) and all(a.is_iteration() for a in x.get_logical_domain()):
            dims = sorted(rng.sample(range(x.ndim), rng.randint(1, x.ndim)))
            pool.append(fold(rng.choice(["sum", "max"]), x, *dims, keepdim=rng.random() < 0.8))
    used = {id(v) for t in pool for u in t.uses() for v in u.inputs}
    for t in pool:
        if t.definition() is not None and (id(t) not in used or rng.random() < 0.1):
            fusion.add_output(t)
    return fusion


def schedule_randomly(fusion: Fusion, rng: random.Random) -> None:
    cache_inputs(fusion)
    cache_and_fork_outputs(fusion)
    rank = max(t.ndim for t in computed(fusion))
    reference = rng.choice([t for t in computed(fusion) if len(t.get_loop_domain()) == rank])
    for _ in range(rng.randint(1, 5)):
        loop = reference.get_loop_domain()
        position = rng.randrange(len(loop))
        choice = rng.random()
        if choice < 0.4:
            split(reference, position, rng.choice([2, 4, 8]), rng.random() < 0.8)
        elif choice < 0.7 and len(loop) > 1:
            other = rng.randrange(len(loop))
            if other != position and loop[other].is_reduction() == loop[position].is_reduction():
                merge(reference, position, other)
        else:
            reorder(reference, {position: rng.randrange(len(loop))})
    transform_like(reference)
    if reference.has_reduction() and not reference.has_root():
        leaves = [p for p, a in enumerate(reference.get_loop_domain()) if a.is_reduction()]
        if len(leaves) > 1:
            reference = rfactor(reference, rng.sample(leaves, rng.randint(1, len(leaves) - 1)))
            transform_like(reference)
    for kind in (P.grid_x, P.block_x):
        free = [a for a in reference.get_loop_domain() if a.parallel is P.serial]
        if free and rng.random() < 0.6:
            rng.choice(free).parallelize(kind)
    parallelize_like(reference)
    if rng.random() < 0.5:
        inline_at(reference, rng.randint(0, len(reference.get_loop_domain())), best_effort=True)
    inline_most(fusion=fusion)


@pytest.mark.parametrize("seed", range(150))
def test_random_schedules_are_legal(seed):
    rng = random.Random(seed)
    fusion = random_fusion(rng)
    if not fusion.outputs():
        return
    schedule_randomly(fusion, rng)
    try:
        check_schedule(fusion)
    except WeftError as error:
        pytest.fail(f"{error}\n{chr(10).join(f'{t.compute_at} {t} = {t.definition()}' for t in computed(fusion))}")
