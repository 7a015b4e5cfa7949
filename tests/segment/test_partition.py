"""The cut: fewest bytes and launches, what costs nothing computed again, linear in the size of a definition."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from quick import lines_run

from weft import DataType, FusionDefinition, compiler
from weft.arch import arch_by_name
from weft.ir.values import ReductionOp, TensorView
from weft.options import options
from weft.runtime.runtimes import SharedDefinition
from weft.segment.partition import make_plan
from weft.segment.plan import KernelStep, Plan

EXTENT = 512


def plan_of(build: Callable[[FusionDefinition], None], order: str = "best") -> Plan:
    """Return the cut of a definition whose open sizes are all 512."""
    with FusionDefinition() as fd:
        build(fd)
    variant = SharedDefinition(fd.fusion).base
    tensors = [v for v in variant.plans.fusion.inputs() if isinstance(v, TensorView)]
    env = {a.sym: EXTENT for t in tensors for a in t.get_logical_domain() if a.sym.is_var}
    arch = arch_by_name("H100")
    return make_plan(variant.plans.fusion, lambda fusion: compiler.declines(fusion, env, arch), env, order)


def matrix(fd: FusionDefinition, dtype: DataType = DataType.Float) -> Any:
    return fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=dtype)


def rows(fd: FusionDefinition, x: Any) -> Any:
    return fd.ops.broadcast(fd.ops.sum(x, [1]), [False, True])


def columns(fd: FusionDefinition, x: Any) -> Any:
    return fd.ops.broadcast(fd.ops.sum(x, [0]), [True, False])


def test_readers_of_one_input_share_a_kernel() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.ops.segment_set(matrix(fd))
        for n in range(20):
            fd.add_output(fd.ops.sin(fd.ops.mul(x, float(n))))

    assert len(plan_of(build).steps) == 2


def test_what_is_stored_between_kernels_is_narrow() -> None:
    """The cast down is made by the writer, the cast up by each reader."""

    def build(fd: FusionDefinition) -> None:
        x = matrix(fd, DataType.BFloat16)
        wide = fd.ops.cast(x, DataType.Float)
        half = fd.ops.cast(fd.ops.sub(wide, rows(fd, wide)), DataType.BFloat16)
        again = fd.ops.cast(half, DataType.Float)
        scaled = fd.ops.div(again, columns(fd, again))
        fd.add_output(fd.ops.cast(scaled, DataType.BFloat16))

    plan = plan_of(build)
    assert len(plan.steps) == 2
    assert [t.dtype() for t in plan.edges] == [DataType.BFloat16]


def test_a_broadcast_is_not_stored() -> None:
    def build(fd: FusionDefinition) -> None:
        x = matrix(fd)
        fd.add_output(fd.ops.exp(fd.ops.mul(x, fd.ops.broadcast(fd.ops.segment_set(fd.ops.sum(x, [1])), [False, True]))))

    (edge,) = plan_of(build).edges
    assert edge.ndim == 1


def test_a_short_chain_is_computed_again_where_that_moves_fewer_bytes() -> None:
    """relu(x) would be written once and read twice; x is read anyway."""

    def build(fd: FusionDefinition) -> None:
        x = matrix(fd)
        y = fd.ops.relu(fd.ops.mul(x, 2.0))
        fd.add_output(fd.ops.sum(fd.ops.exp(fd.ops.sub(y, rows(fd, y))), [1]))
        fd.add_output(fd.ops.sum(fd.ops.exp(fd.ops.sub(y, columns(fd, y))), [0]))

    plan = plan_of(build)
    assert len(plan.steps) == 2 and not plan.edges


def test_a_normalization_stays_whole() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.ops.segment_set(matrix(fd))
        shifted = fd.ops.sub(x, fd.ops.broadcast(fd.ops.max(x, [1]), [False, True]))
        e = fd.ops.exp(shifted)
        fd.add_output(fd.ops.div(e, rows(fd, e)))

    plan = plan_of(build)
    assert len(plan.steps) == 2 and len(plan.edges) == 1


def test_no_step_reads_what_comes_later() -> None:
    """A diamond: the reduction's result goes around by a matrix product, so that its reader cannot be in the kernel of the reduction."""

    def build(fd: FusionDefinition) -> None:
        x, w = matrix(fd), matrix(fd)
        y = fd.ops.relu(x)
        z = fd.ops.matmul(y, w)
        fd.add_output(fd.ops.add(fd.ops.mul(y, 2.0), z))

    for order in ("best", "single", "1", "2"):
        plan = plan_of(build, order)
        known: set[Any] = set()
        for step in plan.steps:
            assert all(not isinstance(v, TensorView) or v.definition() is None or v in known for v in step.reads)
            known |= set(step.outputs)


def layers(fd: FusionDefinition, count: int) -> None:
    """Norms and matrix products: 20 expressions a layer."""
    h = matrix(fd, DataType.BFloat16)
    for _ in range(count):
        weight = fd.define_tensor(shape=[-1], contiguity=True, dtype=DataType.BFloat16)
        wide = fd.ops.cast(h, DataType.Float)
        scale = fd.ops.rsqrt(fd.ops.add(fd.ops.mul(fd.ops.sum(fd.ops.mul(wide, wide), [1]), 1 / 64), 1e-5))
        y = fd.ops.mul(fd.ops.mul(wide, fd.ops.broadcast(scale, [False, True])), fd.ops.broadcast(weight, [True, False]))
        z = fd.ops.linear(fd.ops.cast(y, DataType.BFloat16), matrix(fd, DataType.BFloat16))
        h = fd.ops.cast(fd.ops.add(h, fd.ops.mul(fd.ops.silu(z), z)), DataType.BFloat16)
    fd.add_output(h)


def test_layers_share_kernels() -> None:
    plan = plan_of(lambda fd: layers(fd, 12))
    kernels = [step for step in plan.steps if isinstance(step, KernelStep)]
    assert len(kernels) == 13
    assert len({id(step.fusion) for step in kernels}) == 3  # the first, the last, and all between


def test_the_search_is_linear() -> None:
    """Four times the layers run at most four times the lines of Python (3.3 times: a part is the same for any number), not sixteen times."""
    few, many = (lines_run(lambda count=count: plan_of(lambda fd: layers(fd, count))) for count in (6, 24))  # type: ignore[misc]
    assert many <= 4 * few


def asked_about(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note of each question to the schedulers how many sets of axes its reductions fold."""
    asked: list[int] = []
    plain = compiler.declines

    def declines(fusion: Any, *arguments: Any) -> Any:
        folds = [e.outputs[0].get_logical_domain() for e in fusion.exprs() if isinstance(e, ReductionOp)]
        asked.append(len({tuple(n for n, axis in enumerate(domain) if axis.is_reduction()) for domain in folds}))
        return plain(fusion, *arguments)

    monkeypatch.setattr(compiler, "declines", declines)
    return asked


def test_schedulers_are_asked_about_each_number_of_reductions_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of one input along rows and along columns: whether one kernel takes so many is asked of schedulers, but not anew for each group of as many. Each
    kernel has as many as one takes."""

    def build(fd: FusionDefinition) -> None:
        x = matrix(fd)
        for number in range(100):
            fd.add_output(fd.ops.sum(fd.ops.mul(fd.ops.exp(x), float(number + 2)), [number % 2]))

    asked = asked_about(monkeypatch)
    sizes = sorted(len(step.outputs) for step in plan_of(build).steps)
    assert sum(sizes) == 100 and len(sizes) > 2 and min(sizes[1:]) == max(sizes)
    assert len(asked) <= max(sizes) + 20


def test_folds_over_rows_and_columns_that_are_both_spread_again_are_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second would wait for all of the first: no scheduler takes that, and analyzing it costs more than the search."""

    def build(fd: FusionDefinition) -> None:
        x = matrix(fd)
        for number in range(40):
            x = fd.ops.sub(x, columns(fd, x) if number % 2 else rows(fd, x))
        fd.add_output(x)

    asked = asked_about(monkeypatch)
    assert len(plan_of(build).steps) == 40 and max(asked) == 1


def test_in_a_tangle_of_folds_schedulers_are_asked_about_what_they_take_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds across memory that are spread again beside folds along it, and folds whose loops nothing ties together in their kernel, are known without them."""
    answers: list[Any] = []
    plain = compiler.declines

    def declines(*arguments: Any) -> Any:
        answers.append(plain(*arguments))
        return answers[-1]

    def build(fd: FusionDefinition) -> None:
        rng, values = random.Random(0), [matrix(fd)]
        for number in range(120):
            a, b = rng.choice(values[-20:]), rng.choice(values[-20:])
            values.append(fd.ops.add(a, b) if number % 3 else fd.ops.sub(a, columns(fd, b) if number % 2 else rows(fd, b)))
        fd.add_output(values[-1])

    monkeypatch.setattr(compiler, "declines", declines)
    steps = plan_of(build).steps
    assert answers == [None] * len(answers) and len(answers) <= 3 * len(steps)  # each kernel, and each number of reductions on the way to it


@pytest.mark.parametrize("order", ["best", "single", *map(str, range(8))])
def test_a_state_of_several_fields_stays_in_the_kernel_that_folds_it(order: str) -> None:
    """No tensor in memory has such a type; a random cut, or a kernel per expression, takes the fields out where they are folded."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[6, 9], contiguity=True)
        values, places = fd.ops.topk(x, 2, 1)
        fd.add_output(fd.ops.sin(values))
        fd.add_output(fd.ops.mul(places, 2))
        fd.add_output(fd.ops.add(fd.ops.argmax(x, 1, True), fd.ops.argmin(x, 0, True)))
    with options(partition=order):
        fd.validate([torch.randn(6, 9)])


@pytest.mark.parametrize("is_permuted", [False, True])
def test_an_edge_lies_in_memory_as_the_images_that_it_is_computed_from(is_permuted: bool) -> None:
    """Channels last, as an input's strides say, or as a permute in the definition: otherwise one kernel would write float32 values transposed, and others read
    them so, through tiles."""

    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor(shape=[-1] * 4, contiguity=True, stride_order=[] if is_permuted else [3, 0, 2, 1])
        x = chained = fd.ops.permute(x, [0, 3, 1, 2]) if is_permuted else x
        for _ in range(12):  # more than readers compute again
            chained = fd.ops.sin(fd.ops.mul(chained, 0.7))
        for dims in ([0, 2, 3], [1]):
            fd.add_output(fd.ops.sub(chained, fd.ops.mul(x, fd.ops.sum(chained, dims, True))))

    edges = [t for t in plan_of(build).edges if len(t.get_logical_domain()) == 4 and not any(a.is_reduction() for a in t.get_logical_domain())]
    assert edges
    for edge in edges:
        n, c, h, w = edge.get_logical_domain()
        assert edge.get_allocation_domain() == [n, h, w, c]
    with FusionDefinition() as fd:
        build(fd)
    with options(strict_schedules=True):
        for sizes in ((3, 5, 7, 6), (1, 33, 4, 2), (2, 8, 1, 1)):
            images = torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes))).to(memory_format=torch.channels_last)
            fd.validate([images.permute(0, 2, 3, 1) if is_permuted else images])
