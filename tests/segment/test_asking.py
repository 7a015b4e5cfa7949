"""Which groups one kernel computes is known without asking the schedulers, where loops decide it; and of the rest, they are asked about few."""

from __future__ import annotations

import gc
import random
from collections import Counter
from typing import Any

import pytest
import torch
from quick import lines_by_function

from weft import DataType, FusionDefinition, compiler
from weft.analysis.loop_axes import loop_axes
from weft.arch import H200
from weft.graph.few_terms import term_by_term
from weft.ir.fusion import Fusion
from weft.ir.values import Expr
from weft.runtime import runtimes
from weft.runtime.runtimes import SharedDefinition
from weft.runtime.steps import PlanTable
from weft.segment.asking import Pairs
from weft.segment.extract import boundary, extract
from weft.segment.group import Group
from weft.segment.groups import Graph
from weft.segment.loops import joined_all, of_expr
from weft.segment.partition import kernel_step
from weft.segment.search import repeat_for, search

SAME_LOOP, TWO_EXTENTS = "same loop", "two extents"


def pairs_of_points(fd: FusionDefinition, more: int = 0, coordinates: int = 3, rows: int = 50) -> None:
    """A function of the distances of all pairs, and its sums for each point and each other one."""
    ops = fd.ops
    x = fd.define_tensor(shape=[rows, coordinates], contiguity=True, dtype=DataType.Float)
    d = ops.sub(ops.broadcast(x, [False, True, False]), ops.broadcast(x, [True, False, False]))
    y = r = ops.sum(ops.mul(d, d), [2])
    for n in range(more):
        y = ops.sin(y) if n % 2 else ops.add(y, r)
    fd.add_output(ops.sum(y, [0]))
    fd.add_output(ops.sum(ops.mul(ops.broadcast(ops.exp(y), [False, False, True]), d), [1]))


def small_products(fd: FusionDefinition, more: int = 2, size: int = 3, rows: int = 77) -> None:
    """Powers of small matrices, each product a sum of broadcast products."""
    ops = fd.ops
    y = x = fd.define_tensor(shape=[rows, size, size], contiguity=True, dtype=DataType.Float)
    for _ in range(more):
        terms = ops.mul(ops.broadcast(y, [False, False, False, True]), ops.broadcast(x, [False, True, False, False]))
        y = ops.add(ops.sum(terms, [2]), ops.permute(x, [0, 2, 1]))
    fd.add_output(y)


def shifted(fd: FusionDefinition, more: int = 0) -> None:
    """Rows added to columns, and one sum of rows beside slices of two widths."""
    ops = fd.ops
    x, w = (fd.define_tensor(shape=shape, contiguity=True, dtype=DataType.Float) for shape in ([40, 40], [40]))
    square = ops.add(ops.broadcast(w, [True, False]), ops.broadcast(w, [False, True]))
    column = ops.broadcast(ops.sum(x, [1]), [False, True])
    wide = ops.add(ops.slice(x, [0, 0], [40, 30]), column)
    narrow = ops.mul(ops.slice(x, [0, 5], [40, 25]), ops.exp(column))
    fd.add_output(ops.add(ops.sum(ops.mul(square, x), [0]), ops.sum(wide, [1])))
    fd.add_output(ops.sum(narrow, [1]))


def beside_its_transpose(fd: FusionDefinition) -> None:
    """A matrix of distances, to which its transpose is added, and its sums for each point."""
    ops = fd.ops
    x, m = (fd.define_tensor(shape=shape, contiguity=True, dtype=DataType.Float) for shape in ([50, 3], [50, 50]))
    d = ops.sub(ops.broadcast(x, [False, True, False]), ops.broadcast(x, [True, False, False]))
    both = ops.mul(ops.add(m, ops.permute(m, [1, 0])), ops.exp(ops.sum(ops.mul(d, d), [2])))
    fd.add_output(ops.sum(both, [0]))
    fd.add_output(ops.sum(ops.mul(ops.broadcast(both, [False, False, True]), d), [1]))


def decided(define: Any, **given: int) -> Fusion:
    with FusionDefinition() as fd:
        define(fd, **given)
    return decided_of(fd)


def decided_of(fd: FusionDefinition) -> Fusion:
    shared = SharedDefinition(fd.fusion)
    return (shared.base or shared.variant_for({})).plans.fusion


def grown(exprs: list[Expr], rng: random.Random) -> list[Expr]:
    """Return expressions that share tensors, and one more, in order."""
    some = {rng.randrange(len(exprs))}
    for _ in range(rng.randint(0, len(exprs) * 2 // 3)):
        tensors = {t for n in some for t in (*exprs[n].tensor_inputs, *exprs[n].tensor_outputs)}
        near = [n for n, e in enumerate(exprs) if n not in some and not tensors.isdisjoint((*e.tensor_inputs, *e.tensor_outputs))]
        some.add(rng.choice(near or [0]))
    return [e for n, e in enumerate(exprs) if n in some | {rng.randrange(len(exprs))}]


def test_loops_of_a_group_conflict_where_those_of_its_kernel_do() -> None:
    """For groups of expressions at random: what is found axis by axis is what the analysis of the kernel's fusion finds, in whatever order they are joined."""
    rng, found = random.Random(0), Counter[str]()
    for define in (pairs_of_points, beside_its_transpose, small_products, shifted):
        plain = decided(define)
        for fusion in (plain, term_by_term(plain) or plain):
            for _ in range(60):
                group = grown(fusion.tensor_exprs(), rng)
                reads, writes = boundary(group, {t for e in group for t in e.tensor_outputs})
                own, _ = extract(fusion, group, reads, writes)
                parts = [of_expr(e) for e in group]
                rng.shuffle(parts)
                loops, conflict = joined_all(parts), loop_axes(own).conflict or "none"
                assert (loops.has_conflict or loops.has_two_extents) is (conflict != "none"), (conflict, group)
                kind = SAME_LOOP if SAME_LOOP in conflict else TWO_EXTENTS if TWO_EXTENTS in conflict else conflict
                assert {SAME_LOOP: loops.has_conflict, TWO_EXTENTS: loops.has_two_extents, "none": True}[kind], (conflict, group)
                found[kind] += 1
    assert all(found[kind] >= 10 for kind in (SAME_LOOP, TWO_EXTENTS, "none")), found


def stored_and_scattered(fd: FusionDefinition, more: int = 0) -> None:
    """Values stored at positions, beside functions of a matrix that some of them come from, and its sums."""
    ops = fd.ops
    x, w = (fd.define_tensor(shape=shape, contiguity=True, dtype=DataType.Float) for shape in ([40, 6], [40]))
    at = fd.define_tensor(shape=[40], contiguity=True, dtype=DataType.Int)
    y = ops.mul(x, ops.broadcast(ops.exp(w), [False, True]))
    fd.add_output(ops.scatter_add(ops.neg(w), at, ops.sin(w), 0))
    fd.add_output(ops.sum(y, [1]))
    fd.add_output(ops.mul(ops.sin(w), w))
    fd.add_output(ops.sub(y, ops.broadcast(ops.cos(w), [False, True])))


def test_what_loops_rule_out_no_scheduler_takes() -> None:
    """Two groups that are not asked about, because no tensor can have all loops of one kernel for both, are groups that schedulers decline."""
    rng, ruled_out, taken = random.Random(0), Counter[bool](), 0
    for define in (pairs_of_points, beside_its_transpose, small_products, shifted, stored_and_scattered):
        plain = decided(define)
        for fusion in (plain, term_by_term(plain) or plain):
            for _ in range(3):
                graph = Graph(fusion, fusion.tensor_exprs(), fusion.tensor_outputs(), {})
                pairs = Pairs(graph, lambda a, b: True, is_trusting=True)

                def is_joined(a: Group, b: Group, is_last: bool, graph: Graph = graph, pairs: Pairs = pairs) -> bool:
                    nonlocal taken
                    own = kernel_step(graph.fusion, graph.members(a, b), graph.writes(a, b)).fusion
                    is_taken = not graph.ties(a, b) and compiler.declines(own, {}, H200) is None
                    taken += is_taken
                    if not pairs._may_have_reference(a, b, joined_all([of_expr(e) for e in graph.members(a, b)])):
                        assert not is_taken, str(own)
                        ruled_out[bool(a.folds or b.folds)] += 1
                    return is_taken and rng.random() < 0.7

                search(graph, is_joined, rng)
    assert ruled_out[True] and min(ruled_out[False], taken) >= 20, (ruled_out, taken)


def test_a_group_has_no_expression_that_only_another_one_repeats() -> None:
    """What only another group reads, which computes it again, is not computed in the group that had it: its kernel would have an input that it does not need,
    and schedulers might decline it for an axis of that."""
    with FusionDefinition() as fd:
        x, w = (fd.define_tensor(shape=shape, contiguity=True, dtype=DataType.Float) for shape in ([5, 7], [5, 7]))
        repeated, own = fd.ops.exp(x), fd.ops.sin(w)
        fd.add_output(own)
        fd.add_output(fd.ops.sum(repeated, [1]))
    fusion = decided_of(fd)
    graph = Graph(fusion, fusion.tensor_exprs(), fusion.tensor_outputs(), {})
    exp, sin, fold = (next(g for g in graph.groups if g.anchors[0].op_name == name) for name in ("exp", "sin", "sum"))
    both = graph.join(exp, sin)
    assert repeat_for(graph, exp.anchors[0].tensor_outputs[0] if exp.is_alive else both.anchors[-1].tensor_outputs[0], fold, 1e9)
    assert [e.op_name for e in graph.members(both)] == ["sin"]


def asked(define: Any, monkeypatch: pytest.MonkeyPatch, **given: int) -> int:
    """Return how many fusions the schedulers are asked about."""
    fusion, count, plain = decided(define, **given), 0, compiler.declines

    def declines(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        return plain(*arguments)

    monkeypatch.setattr(compiler, "declines", declines)
    PlanTable(fusion).plan_for({}, H200)
    monkeypatch.setattr(compiler, "declines", plain)
    return count


def test_a_longer_chain_asks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = (asked(pairs_of_points, monkeypatch, more=more) for more in (6, 48))
    assert long <= short + 6, (short, long)  # a few more sizes, each asked about once; one question for each op would be 42


def test_more_products_ask_little_more(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (asked(small_products, monkeypatch, more=more) for more in (2, 4))
    assert many <= few + 6 <= 20, (few, many)


def test_lines_of_a_cut_grow_with_its_ops() -> None:
    """A chain of 60 ops behind the sum of coordinates instead of 20, in groups that are cut again: 70 ops instead of 30."""
    fusions = [decided(pairs_of_points, more=more) for more in (20, 20, 60)]
    _, small, large = (lines_by_function(lambda fusion=fusion: PlanTable(fusion).plan_for({}, H200)).total() for fusion in fusions)
    assert large <= 2.4 * small, (small, large)  # 2.3 is linear; asking about each pair, 3.7


def test_the_collector_waits_while_a_definition_is_normalized(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, seen = runtimes.normalize_in_place, list[bool]()

    def normalize(*arguments: Any) -> Any:
        seen.append(gc.isenabled())
        return plain(*arguments)

    monkeypatch.setattr(runtimes, "normalize_in_place", normalize)
    with FusionDefinition() as fd:
        small_products(fd, rows=78)
    runtimes.shared_definition(fd.fusion)
    assert gc.isenabled() and seen and not any(seen)


@pytest.mark.parametrize("rows", [1, 7, 33])
@pytest.mark.parametrize("define", [pairs_of_points, small_products])
def test_results(define: Any, rows: int) -> None:
    with FusionDefinition() as fd:
        define(fd, rows=rows)
    shape = [int(a.sym.value) for a in fd.fusion.inputs()[0].get_logical_domain()]
    fd.validate([torch.randn(shape)])
