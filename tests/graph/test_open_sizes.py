"""Definitions whose sizes a call brings: few variants for many shapes, kinds of axes decided per call, errors of calls."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from view_cases import CASES

from weft import DataType, FusionDefinition
from weft.graph.concretize import concretize
from weft.graph.questions import Questions

D = DataType


def define(build: Any) -> FusionDefinition:
    with FusionDefinition() as fd:
        for out in build(fd):
            fd.add_output(out)
    return fd


def run(fd: FusionDefinition, *inputs: Any) -> torch.Tensor:
    (out,) = fd.execute(list(inputs))
    return out


def compare(out: torch.Tensor, expected: torch.Tensor) -> None:
    assert out.shape == expected.shape
    torch.testing.assert_close(out.double(), expected.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_symbolic_definitions_run(name: str) -> None:
    case = CASES[name]
    fd, inputs = case.define(is_symbolic=True), case.inputs()
    for out, expected in zip(fd.execute(inputs), case.expected(inputs), strict=True):
        compare(out, expected)


def grown(shapes: Any, rng: random.Random) -> Any:
    """Shapes with another batch, and with rows that are longer by a factor."""
    batch, factor = rng.randint(2, 40), rng.randint(1, 5)
    return [tuple(batch if d == 0 else n * factor if d == len(s) - 1 and n > 1 else n for d, n in enumerate(s)) for s in shapes]


@pytest.mark.parametrize("name", ["softmax over heads after a split", "norm after a flatten", "heads permuted"])
def test_one_definition_at_fifty_shapes_has_few_variants(name: str) -> None:
    """Values at some of the shapes, decisions at all of them: the sizes differ, what has to be known of them does not."""
    case, rng = CASES[name], random.Random(0)
    fd = case.define(is_symbolic=True)
    template = fd.fec._caller.shared if hasattr(fd, "fec") else None
    for number in range(50):
        inputs = case.inputs(grown(case.shapes, rng))
        if number < 6:
            for out, expected in zip(fd.execute(inputs), case.expected(inputs), strict=True):
                compare(out, expected)
        else:
            caller = fd.fec._caller
            caller.shared.variant_for(caller.bind(inputs).env)
    template = fd.fec._caller.shared
    assert len(template._variants) <= 3
    assert len(fd.fec.kernel_runtimes) <= 4


def test_a_reshape_by_scalars_serves_every_factorization() -> None:
    def build(fd: Any) -> list[Any]:
        x, n = fd.define_tensor([-1, -1], contiguity=True), fd.define_scalar(D.Int)
        return [fd.ops.exp(fd.ops.reshape(x, [n, -1]))]

    fd = define(build)
    a = torch.randn(6, 8)
    for n in (1, 2, 3, 6, 12, 48, 24):
        compare(run(fd, a, n), a.reshape(n, -1).exp())


def test_an_open_axis_of_size_one_broadcasts() -> None:
    def build(fd: Any) -> list[Any]:
        x, y = fd.define_tensor([-1], contiguity=True), fd.define_tensor([4, -1], contiguity=True)
        return [fd.ops.add(fd.ops.reshape(x, [fd.ops.size(x, 0), 1]), y), fd.ops.mul(fd.ops.reshape(x, [-1]), fd.ops.sum(y, [0]))]

    fd = define(build)
    for n in (4, 1):
        if n == 4:
            x, y = torch.randn(4), torch.randn(4, 4)
        else:
            x, y = torch.randn(1), torch.randn(4, 5)
        first, second = fd.execute([x, y])
        compare(first, x[:, None] + y)
        compare(second, x * y.sum(0))


def test_a_reduction_over_an_open_axis_of_size_one_is_a_squeeze() -> None:
    def build(fd: Any) -> list[Any]:
        x, n = fd.define_tensor([-1, 6], contiguity=True), fd.define_scalar(D.Int)
        r = fd.ops.reshape(x, [n, -1])
        return [fd.ops.sum(r, [0]), fd.ops.max(fd.ops.relu(r), [1]), fd.ops.sum(r)]

    fd = define(build)
    a = torch.randn(4, 6)
    for n in (1, 2, 24):
        for out, expected in zip(fd.execute([a, n]), (a.reshape(n, -1).sum(0), a.reshape(n, -1).relu().amax(1), a.sum()), strict=True):
            compare(out, expected)


def test_factories_of_a_symbolic_size_broadcast_when_it_is_one() -> None:
    def build(fd: Any) -> list[Any]:
        x, n = fd.define_tensor([5, 3], contiguity=True), fd.define_scalar(D.Int)
        return [fd.ops.add(x, fd.ops.full([n, 3], 2.0, D.Float)), fd.ops.add(x, fd.ops.iota(n, 7, 1, D.Float))]

    fd = define(build)
    a = torch.randn(5, 3)
    first, second = fd.execute([a, 1])
    compare(first, a + 2)
    compare(second, a + 7)
    with pytest.raises(RuntimeError, match="makes them equal"):
        fd.execute([a, 4])


def test_an_open_expand_is_decided_per_call() -> None:
    def build(fd: Any) -> list[Any]:
        x, n, m = fd.define_tensor([-1], contiguity=True), fd.define_scalar(D.Int), fd.define_scalar(D.Int)
        return [fd.ops.relu(fd.ops.expand(fd.ops.reshape(x, [n, -1]), [m, fd.ops.size(x, 0)]))]

    fd = define(build)
    x = torch.randn(6)
    compare(run(fd, x, 1, 4), x.relu().expand(4, 6))
    with pytest.raises(RuntimeError, match="Mismatch in sizes when concretizing expand"):
        fd.execute([x, 2, 4])


def test_run_time_slices_and_pads() -> None:
    def build(fd: Any) -> list[Any]:
        x, a, b = fd.define_tensor([-1, -1], contiguity=True), fd.define_scalar(D.Int), fd.define_scalar(D.Int)
        return [fd.ops.exp(fd.ops.slice(x, [a, 0], [b, fd.ops.size(x, 1)])), fd.ops.exp(fd.ops.pad(x, [a, b]))]

    fd = define(build)
    x = torch.randn(7, 5)
    for a, b in ((1, 4), (2, 3), (-3, -1), (0, 100), (3, 3)):
        first, second = fd.execute([x, a, b])
        compare(first, x[a:b].exp())
        compare(second, torch.nn.functional.pad(x, [a, b]).exp())
    with pytest.raises(RuntimeError, match="Invalid resized domain extent"):
        fd.execute([x, -4, -2])


def test_errors_of_a_call() -> None:
    def reshaped(fd: Any) -> list[Any]:
        x, n, m = fd.define_tensor([-1], contiguity=True), fd.define_scalar(D.Int), fd.define_scalar(D.Int)
        return [fd.ops.relu(fd.ops.reshape(x, [n, m]))]

    fd = define(reshaped)
    with pytest.raises(RuntimeError, match="Total element counts across view operation must match:"):
        fd.execute([torch.randn(6), 4, 2])
    with pytest.raises(RuntimeError, match="Values of -1 passed to reshape must be constant at definition."):
        fd.execute([torch.randn(6), -1, 6])
    compare(run(fd, x := torch.randn(6), 2, 3), x.relu().reshape(2, 3))

    def squeezed(fd: Any) -> list[Any]:
        x, n = fd.define_tensor([-1], contiguity=True), fd.define_scalar(D.Int)
        return [fd.ops.relu(fd.ops.squeeze(fd.ops.reshape(x, [n, -1]), [0]))]

    fd = define(squeezed)
    compare(run(fd, x, 1), x.relu())
    with pytest.raises(RuntimeError, match=r"Can not squeeze dimension\(s\) with size != 1."):
        fd.execute([x, 2])


def test_an_expand_of_an_ordinary_axis_is_checked() -> None:
    def build(fd: Any) -> list[Any]:
        x, n = fd.define_tensor([-1], contiguity=True), fd.define_scalar(D.Int)
        return [fd.ops.relu(fd.ops.expand(x, [n]))]

    fd = define(build)
    compare(run(fd, x := torch.randn(6), 6), x.relu())
    with pytest.raises(RuntimeError):
        fd.execute([x, 7])


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (0, 0)])
def test_empty_tensors(sizes: tuple[int, int]) -> None:
    def build(fd: Any) -> list[Any]:
        x, y = (fd.define_tensor([-1, 4], contiguity=True) for _ in range(2))
        o = fd.ops
        return [o.cat([o.relu(x), y], 0), o.pad(x, [0, 0, 1, 2]), o.reshape(o.exp(y), [o.size(y, 0), 2, 2]), o.sum(o.reshape(x, [-1]))]

    fd = define(build)
    x, y = (torch.randn(n, 4) for n in sizes)
    outs = fd.execute([x, y])
    compare(outs[0], torch.cat([x.relu(), y]))
    compare(outs[1], torch.nn.functional.pad(x, [0, 0, 1, 2]))
    compare(outs[2], y.exp().reshape(-1, 2, 2))
    compare(outs[3], x.sum())


def test_answers_are_recorded_only_where_sizes_are_open() -> None:
    questions = Questions()
    fusion = CASES["group norm"].define().fusion.clone()[0]
    concretize(fusion, questions)
    assert questions.answers == ()


@pytest.mark.parametrize("shape, strides", [((2, 1), (2, 2)), ((2, 1), (1, 7)), ((4, 3), (6, 2)), ((0, 1), (1, 1))])
def test_an_axis_around_a_strided_one_of_size_1_is_strided(shape: tuple[int, int], strides: tuple[int, int]) -> None:
    """The strided axis is gone where a reshape finds that its size is 1; the stride of the one around it stays what it was."""
    with FusionDefinition() as fd:
        x, size = fd.define_tensor([-1, -1], [True, False]), fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.neg(fd.ops.reshape(x, [size])))
    given = torch.randn(64).as_strided(shape, strides)
    assert torch.equal(fd.execute([given, given.numel()])[0], -given.reshape(-1))


@pytest.mark.parametrize("count", [1, 3])
def test_sizes_of_a_result_are_those_that_open_axes_are_broadcast_to(count: int) -> None:
    """The sizes of both operands depend on the call, and the first may be 1."""
    with FusionDefinition() as fd:
        x, n, o = fd.define_tensor([-1, -1], contiguity=True), fd.define_scalar(DataType.Int), fd.ops
        y = o.minimum(o.slice(x, [0, 0], [n, n]), o.slice(x, [0, 0], [3, 3]))
        fd.add_output(o.mean(y, [0]))
        fd.add_output(o.reshape(y, [-1]))
        fd.add_output(o.full(y.shape(), 1.0, DataType.Float))
    x = torch.randn(3, 4)
    wanted = torch.minimum(x[:count, :count], x[:3, :3])
    mean, flat, ones = fd.execute([x, count])
    torch.testing.assert_close(mean, wanted.mean(0))
    assert torch.equal(flat, wanted.flatten()) and ones.shape == wanted.shape


ROWS = {
    "batched product": (lambda o, x, w, n: o.matmul(o.reshape(x, [n, -1, 4]), w), lambda x, w, n: x.reshape(n, -1, 4) @ w, (5, 4, 6)),
    "batch on the right": (lambda o, x, w, n: o.matmul(w, o.reshape(x, [n, 4, -1])), lambda x, w, n: w @ x.reshape(n, 4, -1), (5, 6, 4)),
    "rows that are added": (
        lambda o, x, w, n: o.add(o.linear(o.reshape(x, [n, -1, 4]), o.select(w, 0, 0)), o.slice(w, [0, 0, 0], [5, 1, 1])),
        lambda x, w, n: torch.nn.functional.linear(x.reshape(n, -1, 4), w[0]) + w[:, :1, :1], (5, 6, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("counts", [(1, 5), (5, 1)], ids=str)
def test_an_axis_of_a_product_is_broadcast_where_it_has_one_element(name: str, counts: tuple[int, ...]) -> None:
    """Batches and rows of operands of torch's products, whose number a call brings: among themselves, and with what the result meets."""
    build, reference, shape = ROWS[name]
    with FusionDefinition() as fd:
        x, w, n = fd.define_tensor([-1, -1], True), fd.define_tensor([-1, -1, -1], True), fd.define_scalar(DataType.Int)
        fd.add_output(build(fd.ops, x, w, n))
    for count in counts:
        x, w = torch.randn(3 * count, 4), torch.randn(shape)
        compare(run(fd, x, w, count), reference(x.double(), w.double(), count))
