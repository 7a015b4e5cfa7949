"""Outputs that are inputs, or are written into them: the right numbers whatever is read meanwhile, and no copy where none is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from calls_on_cpu import assert_same, define, tensor

from weft import DataType, FusionDefinition, WeftError
from weft.runtime.outputs import OutputPlan, hazard


def run_text(fd: FusionDefinition) -> str:
    """What the last call's function names: `copy_` where it copies back."""
    (prepared,) = list(fd.fec._caller._prepared.values())[-1:]
    return " ".join(prepared.run.__code__.co_names)


def copies(fd: FusionDefinition) -> bool:
    return "copy_" in run_text(fd)


def in_place(build: Callable[[FusionDefinition, Any], Any], rank: int = 2, **keywords: Any) -> FusionDefinition:
    """A definition whose only output is `build` of its input, written into the input."""

    def both(fd: FusionDefinition) -> None:
        x = tensor(fd, rank, **keywords)
        fd.add_output(build(fd, x), x)

    return define(both)


def row_sums(fd: FusionDefinition, x: Any) -> Any:
    return fd.ops.broadcast(fd.ops.sum(x, [1]), [False, True])


# ---------------------------------------------------------------- in place
def test_an_elementwise_update_is_made_in_place() -> None:
    fd, x = in_place(lambda fd, x: fd.ops.add(x, 1.0)), torch.randn(4, 8)
    expected = x + 1
    assert fd.execute([x]) == []
    assert_same([x], [expected])
    assert not copies(fd)


def test_an_input_that_is_read_twice_elementwise_is_updated_correctly() -> None:
    fd, x = in_place(lambda fd, x: fd.ops.mul(x, fd.ops.sigmoid(x))), torch.randn(4, 300)
    expected = x * x.sigmoid()
    fd.execute([x])
    assert_same([x], [expected])


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda fd, x: fd.ops.sub(x, row_sums(fd, x)), lambda x: x - x.sum(1, keepdim=True)),
        (lambda fd, x: fd.ops.permute(x, [1, 0]), lambda x: x.t()),
    ],
    ids=["reduction and broadcast", "permute"],
)
def test_an_update_that_reads_elsewhere_is_copied_back(build: Callable[..., Any], expected: Callable[[torch.Tensor], torch.Tensor]) -> None:
    fd, x = in_place(build), torch.randn(40, 40)
    result = expected(x).clone()
    assert fd.execute([x]) == []
    assert_same([x], [result])
    assert copies(fd)


def test_a_strided_input_is_updated_where_it_lies() -> None:
    fd = in_place(lambda fd, x: fd.ops.mul(x, 2.0), contiguity=False)
    buffer = torch.randn(8, 16)
    expected = buffer.clone()
    expected[::2, 1:9:2] *= 2
    fd.execute([buffer[::2, 1:9:2]])
    assert_same([buffer], [expected])
    assert copies(fd)  # the output is dense, the input is not


def test_another_output_sees_the_old_values() -> None:
    def build(fd: FusionDefinition) -> None:
        x = tensor(fd, 2)
        fd.add_output(fd.ops.add(x, 1.0), x)
        fd.add_output(fd.ops.mul(x, 3.0))

    fd, x = define(build), torch.randn(5, 600)
    old = x.clone()
    assert_same(fd.execute([x]), [old * 3])
    assert_same([x], [old + 1])


@pytest.mark.parametrize("shape", [[6, 4], [24], [2, 2, 6], [3, 8]], ids=str)
def test_a_reshape_that_is_an_output_shows_the_old_values(shape: list[int]) -> None:
    """Reshapes from (4, 6) to (6, 4) and to (3, 8) are no renaming of axes, but the same memory."""

    def build(fd: FusionDefinition) -> None:
        x = tensor(fd, 2)
        fd.add_output(fd.ops.reshape(x, shape))
        fd.add_output(fd.ops.mul(x, 3.0), x)

    fd, x = define(build), torch.randn(4, 6)
    old = x.clone()
    assert_same(fd.execute([x]), [old.reshape(shape)])
    assert_same([x], [old * 3])


def test_an_update_that_turns_a_reshape_reads_it_before() -> None:
    """x as (6, 4), turned to (4, 6): each element is read at another position of the same memory than it is written to."""
    fd, x = in_place(lambda fd, x: fd.ops.mul(fd.ops.permute(fd.ops.reshape(x, [150, 200]), [1, 0]), 2.0)), torch.randn(200, 150)
    expected = x.reshape(150, 200).t() * 2
    fd.execute([x])
    assert_same([x], [expected])


def test_a_result_in_a_misaligned_input_is_read_element_by_element() -> None:
    """A later kernel reads, in another shape, what was written in place: it lies where the input lies, and not like a fresh buffer."""

    def build(fd: FusionDefinition) -> None:
        x = tensor(fd, 2)
        y = fd.ops.add(x, 2.0)
        z = fd.ops.reshape(y, [12, 12])
        fd.add_output(fd.ops.mul(z, fd.ops.sum(z, [1], True)))
        fd.add_output(y, x)

    fd, x = define(build), torch.randn(147)[1:145].view(9, 16)
    wanted = x + 2
    z = wanted.view(12, 12)
    assert_same(fd.execute([x]), [z * z.sum(1, keepdim=True)])
    assert_same([x], [wanted])


def test_an_input_that_is_replaced_by_something_else_is_read_before() -> None:
    """The output written into x does not depend on x, so that nothing orders its write after the reading of x."""

    def build(fd: FusionDefinition) -> None:
        x, y = tensor(fd, 2), tensor(fd, 2)
        fd.add_output(fd.ops.relu(y), x)
        fd.add_output(fd.ops.add(x, y))

    fd, x, y = define(build), torch.randn(5, 600), torch.randn(5, 600)
    total = x + y
    assert_same(fd.execute([x, y]), [total])
    assert_same([x], [y.relu()])
    assert copies(fd)


def test_an_input_that_is_only_written_needs_no_copy() -> None:
    def build(fd: FusionDefinition) -> None:
        x, y = tensor(fd, 1), tensor(fd, 1)
        fd.add_output(fd.ops.relu(y), x)

    fd, x, y = define(build), torch.zeros(5), torch.randn(5)
    fd.execute([x, y])
    assert_same([x], [y.relu()])
    assert not copies(fd)


def running_mean(axis: int, dtype: DataType = DataType.Float, **keywords: Any) -> FusionDefinition:
    """The sums along one axis, and a running mean of them that is updated in place."""

    def build(fd: FusionDefinition) -> None:
        x, running = tensor(fd, 2, dtype), tensor(fd, 1, **keywords)
        total = fd.ops.sum(fd.ops.cast(x, DataType.Float), [axis])
        fd.add_output(fd.ops.add(fd.ops.mul(running, 0.9), fd.ops.mul(total, 0.1)), running)
        fd.add_output(total)

    return define(build)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("sizes", [(6, 50), (1, 1), (1, 33), (33, 1), (3, 4099), (257, 5), (2, 40000), (40000, 2), (0, 7)], ids=str)
def test_running_statistics_are_updated_beside_a_reduction(sizes: tuple[int, int], axis: int) -> None:
    """Of the threads (and blocks) of a sum, the one that writes the running mean is the only one that loads it: else the others race with it."""
    fd, x = running_mean(axis), torch.randn(sizes)
    running = torch.randn(sizes[1 - axis])
    total = x.double().sum(axis)
    expected = running.double() * 0.9 + total * 0.1
    (out,) = fd.execute([x, running])
    # A float32 sum of n numbers of size 1 in another order: at most sqrt(n) * log2(n) roundings of 2^-24 are likely.
    bound = 2.0**-24 * max(1.0, sizes[axis] ** 0.5) * 32
    torch.testing.assert_close(out.double(), total, rtol=1e-5, atol=bound)
    torch.testing.assert_close(running.double(), expected, rtol=1e-5, atol=bound)
    assert 0 in sizes or not copies(fd)  # empty axes leave a kernel without the sum


def test_running_statistics_in_a_strided_buffer_are_copied_back() -> None:
    fd, x, buffer = running_mean(1, contiguity=False), torch.randn(6, 50), torch.randn(13)
    expected = buffer.clone()
    expected[1::2] = buffer[1::2] * 0.9 + x.sum(1) * 0.1
    assert_same(fd.execute([x, buffer[1::2]]), [x.sum(1)])
    assert_same([buffer], [expected])
    assert copies(fd)


def test_a_row_that_every_row_reads_is_updated_after_they_have_read_it() -> None:
    """Its axis of extent 1 meets an axis of any length without a broadcast op, so that all threads load what some of them write."""

    def build(fd: FusionDefinition) -> None:
        x, y = fd.define_tensor(shape=[1, -1], contiguity=[None, True]), tensor(fd, 2)
        fd.add_output(fd.ops.mul(x, 2.0), x)
        fd.add_output(fd.ops.add(x, y))

    for rows, columns in ((50, 300), (1, 7), (1000, 1)):
        fd, x, y = define(build), torch.randn(1, columns), torch.randn(rows, columns)
        expected, doubled = x + y, x * 2
        assert_same(fd.execute([x, y]), [expected])
        assert_same([x], [doubled])
        assert copies(fd)


@pytest.mark.parametrize("writer_first", [False, True])
def test_an_input_that_a_later_kernel_reads_is_written_at_the_end(writer_first: bool) -> None:
    """Outputs that nothing connects are kernels of their own."""

    def build(fd: FusionDefinition) -> None:
        first, second = tensor(fd, 2), tensor(fd, 2)
        x, y = (second, first) if writer_first else (first, second)
        fd.add_output(fd.ops.relu(y), x)
        fd.add_output(fd.ops.mul(x, 3.0))

    fd, x, y = define(build), torch.randn(5, 60), torch.randn(5, 60)
    expected = x * 3
    assert_same(fd.execute([y, x] if writer_first else [x, y]), [expected])
    assert_same([x], [y.relu()])
    assert copies(fd) == writer_first


def test_an_input_written_into_another_is_what_it_was_before_the_call() -> None:
    def build(fd: FusionDefinition) -> None:
        x, y = tensor(fd, 1), tensor(fd, 1)
        fd.add_output(x, y)
        fd.add_output(fd.ops.add(x, 1.0), x)

    x, y = torch.randn(9), torch.randn(9)
    old = x.clone()
    define(build).execute([x, y])
    assert_same([x, y], [old + 1, old])


def test_two_inputs_written_into_each_other_change_places() -> None:
    def build(fd: FusionDefinition) -> None:
        x, y = tensor(fd, 1), tensor(fd, 1)
        fd.add_output(x, y)
        fd.add_output(y, x)

    x, y = torch.randn(9), torch.randn(9)
    old_x, old_y = x.clone(), y.clone()
    define(build).execute([x, y])
    assert_same([x, y], [old_y, old_x])


# ---------------------------------------------------------------- memory that overlaps
def sum_into_first() -> FusionDefinition:
    def build(fd: FusionDefinition) -> None:
        x, y = tensor(fd, 1), tensor(fd, 1)
        fd.add_output(fd.ops.add(x, y), x)

    return define(build)


def test_one_tensor_given_twice() -> None:
    fd, x = sum_into_first(), torch.randn(64)
    expected = x * 2
    fd.execute([x, x])
    assert_same([x], [expected])


def test_views_that_overlap_are_seen_at_every_call() -> None:
    """The signature is the same; whether the inputs overlap is asked each time."""
    fd = sum_into_first()
    x, y = torch.randn(1024), torch.randn(1024)
    expected = x + y
    fd.execute([x, y])
    assert_same([x], [expected])
    buffer = torch.randn(1040)
    expected = buffer[16:] + buffer[:1024]
    fd.execute([buffer[16:], buffer[:1024]])
    assert_same([buffer[16:]], [expected])
    assert len(fd.fec._caller._prepared) == 1


# ---------------------------------------------------------------- what is returned
def test_an_aliased_output_that_is_added_plainly_too_is_the_input() -> None:
    def build(fd: FusionDefinition) -> None:
        x = tensor(fd, 1)
        y = fd.ops.add(x, 1.0)
        fd.add_output(y, x)
        fd.add_output(y)

    x = torch.zeros(4)
    (out,) = define(build).execute([x])
    assert out is x and x.tolist() == [1.0] * 4


def test_an_input_that_is_an_output_is_the_same_tensor() -> None:
    def build(fd: FusionDefinition) -> None:
        x = tensor(fd, 1)
        fd.add_output(x)
        fd.add_output(fd.ops.relu(x))

    x = torch.randn(4)
    out = define(build).execute([x])
    assert out[0] is x
    assert_same(out, [x, x.relu()])


@pytest.mark.parametrize("shape", [None, [4, 6]], ids=["the input", "a reshape to its own sizes"])
@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_an_output_that_is_an_input_shows_the_old_values(shape: list[int] | None, is_strided: bool) -> None:
    """The call writes another output into the input: what is returned is what the input was before, as `fd.validate` expects."""

    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor(shape=[4, 6], contiguity=not is_strided, dtype=DataType.Float)
        y = x if shape is None else fd.ops.reshape(x, shape)
        fd.add_output(y)
        fd.add_output(fd.ops.neg(x), x)
        fd.add_output(y)

    fd, x = define(build), torch.randn(4, 12)[:, ::2] if is_strided else torch.randn(4, 6)
    old = x.clone()
    out = fd.execute([x])
    assert_same([*out, x], [old, old, -old])
    fd.validate([x])


def test_a_definition_that_only_passes_through_needs_no_kernel() -> None:
    fd, x = define(lambda fd: fd.add_output(tensor(fd, 1))), torch.randn(4)
    assert fd.execute([x])[0] is x and fd.execute([x])[0] is x
    assert fd.fec.kernel_runtimes == ()


def test_a_cpu_scalar_that_passes_through_stays_on_the_cpu() -> None:
    def build(fd: FusionDefinition) -> None:
        s = fd.define_tensor(shape=[], contiguity=[], is_cpu=True)
        fd.add_output(s)
        fd.add_output(fd.ops.mul(tensor(fd, 1), s))

    x, s = torch.randn(4), torch.tensor(3.0)
    out = define(build).execute([s, x])
    assert out[0] is s
    assert_same(out[1:], [x * 3])


def test_an_output_listed_twice_is_computed_once() -> None:
    def build(fd: FusionDefinition) -> None:
        y = fd.ops.relu(tensor(fd, 1))
        fd.add_output(y)
        fd.add_output(y)

    out = define(build).execute([torch.randn(4)])
    assert len(out) == 2 and out[0] is out[1]


def test_a_leaf_that_requires_grad_can_be_updated_where_no_gradient_is_recorded() -> None:
    fd, x = in_place(lambda fd, x: fd.ops.sub(x, row_sums(fd, x))), torch.randn(4, 4, requires_grad=True)
    expected = (x - x.sum(1, keepdim=True)).detach()
    with torch.no_grad():
        fd.execute([x])
    assert_same([x.detach()], [expected])
    with pytest.raises(RuntimeError, match="W139"):
        fd.execute([x])


# ---------------------------------------------------------------- errors
def test_an_output_of_other_sizes_than_its_input_is_refused() -> None:
    def build(fd: FusionDefinition) -> None:
        x, y = tensor(fd, 1), tensor(fd, 1)
        fd.add_output(fd.ops.relu(x), y)

    with pytest.raises(RuntimeError, match=r"is written into input 1, T1_g.*, whose sizes are \[5\]; the output's are \[4\]"):
        define(build).execute([torch.zeros(4), torch.zeros(5)])


def test_results_of_cpu_scalars_alone_are_refused() -> None:
    fd = define(lambda fd: fd.add_output(fd.ops.mul(fd.define_tensor(shape=[], contiguity=[], is_cpu=True), 2.0)))
    with pytest.raises(RuntimeError, match="KernelExecutor does not support the Fusion provided."):
        fd.execute([torch.tensor(1.0)])


# ---------------------------------------------------------------- the analysis
def test_hazards_name_the_op() -> None:
    fd = in_place(lambda fd, x: fd.ops.sub(x, row_sums(fd, x)))
    fusion = fd.fusion
    assert fusion is not None
    assert "sum reads" in (hazard(fusion, fusion.inputs()[0], fusion.outputs()[0]) or "")  # type: ignore[arg-type]


def test_output_plan_of_repeated_and_hidden_outputs() -> None:
    def build(fd: FusionDefinition) -> None:
        x, y = tensor(fd, 1), tensor(fd, 1, DataType.Float)
        z = fd.ops.add(x, y)
        fd.add_output(z)
        fd.add_output(z, y)
        fd.add_output(x)

    plan = OutputPlan(define(build).fusion)  # type: ignore[arg-type]
    assert (len(plan.computed), plan.alias, plan.returned) == (1, [1], [("input", 1), ("input", 0)])


@pytest.mark.parametrize("target", [torch.ones(1).expand(3), torch.ones(3, 1).expand(3, 4)])
def test_a_target_whose_elements_share_memory_is_refused(target: torch.Tensor) -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1] * target.dim(), contiguity=False) for _ in range(2))
        fd.add_output(fd.ops.exp(x), y)
    with pytest.raises(WeftError, match="W745: output T2.* is written into input 1, .*, whose elements share memory"):
        fd.execute([torch.ones(target.shape), target])
    assert (target == 1).all()


@pytest.mark.parametrize("times", [1, 2])
def test_an_updated_input_is_returned_where_its_new_value_is_added_plainly(times: int) -> None:
    """In the order of the calls without `alias_input`, and as often; the text of the definition says the same."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1], contiguity=True) for _ in range(2))
        total = fd.ops.add(x, y)
        fd.add_output(total, y)
        fd.add_output(fd.ops.mul(y, 2.0))
        for _ in range(times):
            fd.add_output(total)
    scope: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), scope)
    with FusionDefinition() as again:
        scope["nvfuser_fusion"](again)
    for definition in (fd, again):
        a, b = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])
        doubled, *totals = definition.execute([a, b])
        assert doubled.tolist() == [20, 40] and len(totals) == times and all(t is b for t in totals) and b.tolist() == [11, 22]


@pytest.mark.parametrize("is_first_a_sum", [False, True])
def test_of_two_values_for_one_input_the_second_is_written(is_first_a_sum: bool) -> None:
    """Whichever kernel computes it; the first is returned, in memory of its own, where it was added plainly, and read where something else reads it."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(2))
        values = [fd.ops.add(x, fd.ops.sum(x, [0], True)), fd.ops.mul(x, y)]
        first, second = values if is_first_a_sum else values[::-1]
        fd.add_output(first)
        fd.add_output(first, y)
        fd.add_output(fd.ops.neg(first))
        fd.add_output(second, y)
    a, b = torch.randn(5, 7), torch.randn(5, 7)
    added, times = a + a.sum(0), a * b
    first, second = (added, times) if is_first_a_sum else (times, added)
    out, negative = fd.execute([a, b])
    assert_same([out, negative, b], [first, -first, second])
