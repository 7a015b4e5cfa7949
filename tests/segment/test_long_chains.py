"""Long chains of arithmetic that two kernels share are computed in both, where that takes no longer than storing and reading the result."""

from __future__ import annotations

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.arch import H200
from weft.runtime.runtimes import SharedDefinition
from weft.runtime.steps import PlanTable


def behind_an_activation(exponentials: int = 1, products: int = 0) -> FusionDefinition:
    """Gradient through SiLU of x * a + b, its sums of samples and pixels, and what is left of it without them. Tensors are [samples, channels, pixels]."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x, g = (ops.cast(fd.define_tensor([-1] * 3, contiguity=True, dtype=DataType.BFloat16), DataType.Float) for _ in range(2))
        a, b = (ops.broadcast_in_dim(fd.define_tensor([-1], contiguity=True, dtype=DataType.Float), x.shape(), [1]) for _ in range(2))
        y = ops.add(ops.mul(x, a), b)
        for _ in range(exponentials - 1):
            y = ops.sin(ops.exp(ops.add(y, 0.5)))
        for n in range(products):
            y = ops.mul(ops.add(y, 0.25 * n), y)
        s = ops.sigmoid(y)
        t = ops.mul(g, ops.mul(s, ops.add(1.0, ops.mul(y, ops.sub(1.0, s)))))
        total, tilted = (ops.broadcast_in_dim(ops.sum(v, [0, 2]), x.shape(), [1]) for v in (t, ops.mul(t, x)))
        fd.add_output(ops.cast(ops.sub(ops.sub(t, ops.mul(total, 1e-6)), ops.mul(x, ops.mul(tilted, 1e-6))), DataType.BFloat16))
    return fd


def widest_edges(fd: FusionDefinition, samples: int, channels: int, pixels: int) -> list[int]:
    """Return how many axes each tensor between two kernels has."""
    env = {}
    for tensor, sizes in zip(fd.fusion.inputs(), ((samples, channels, pixels), (samples, channels, pixels), (channels,), (channels,))):
        env.update((axis.sym, size) for axis, size in zip(tensor.get_logical_domain(), sizes))
    plan = PlanTable(fd.fusion).plan_for(env, H200)
    assert len(plan.kernels) == 2
    read = {t for step in plan.kernels for t in step.inputs}
    assert all(t in read or t in fd.fusion.outputs() for step in plan.kernels for t in step.outputs)
    return [sum(not axis.is_reduction() and not axis.is_broadcast() for axis in t.get_logical_domain()) for t in plan.edges]


def test_what_two_kernels_share_is_not_stored() -> None:
    assert max(widest_edges(behind_an_activation(), 32, 3, 1 << 18)) == 1


def test_what_takes_longer_to_compute_than_to_read_is_stored() -> None:
    assert max(widest_edges(behind_an_activation(6), 32, 3, 1 << 18)) == 3


@pytest.mark.parametrize("pixels, wanted", [(1 << 18, 1), ((1 << 18) - 1, 3)])
def test_instructions_are_hidden_behind_what_a_kernel_has_to_load(pixels: int, wanted: int) -> None:
    """Two activations and some products take longer than the bytes of their result, but the second kernel waits for its inputs anyway; not where each access is one element."""
    assert max(widest_edges(behind_an_activation(2, 2), 32, 3, pixels)) == wanted


def behind_an_activation_of_two(dtype: DataType) -> FusionDefinition:
    """The same of x * g * a + b, less its part along x * 0.5 - 1: alone, t saves no bytes in float32, since x and g are read instead of t being written and
    read. After x * 0.5 - 1, which comes later, x is read anyway."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x, g = (ops.cast(fd.define_tensor([-1] * 3, contiguity=True, dtype=dtype), DataType.Float) for _ in range(2))
        a, b = (ops.broadcast_in_dim(fd.define_tensor([-1], contiguity=True, dtype=DataType.Float), x.shape(), [1]) for _ in range(2))
        y = ops.add(ops.mul(ops.mul(x, g), a), b)
        s = ops.sigmoid(y)
        t = ops.mul(s, ops.add(1.0, ops.mul(y, ops.sub(1.0, s))))
        n = ops.sub(ops.mul(x, 0.5), 1.0)
        total, tilted = (ops.broadcast_in_dim(ops.sum(v, [0, 2]), x.shape(), [1]) for v in (t, ops.mul(t, n)))
        fd.add_output(ops.cast(ops.sub(ops.sub(t, ops.mul(total, 1e-6)), ops.mul(n, ops.mul(tilted, 1e-6))), dtype))
    return fd


@pytest.mark.parametrize("dtype", [DataType.BFloat16, DataType.Float])
def test_a_chain_is_asked_about_again_when_its_reader_reads_its_inputs_for_another(dtype: DataType) -> None:
    assert max(widest_edges(behind_an_activation_of_two(dtype), 32, 3, 1 << 18)) == 1


def test_results_of_two() -> None:
    x, g, a, b = torch.randn(3, 5, 7001), torch.randn(3, 5, 7001), torch.randn(5), torch.randn(5)
    with poisoned_outputs():
        (made,) = behind_an_activation_of_two(DataType.Float).execute([x, g, a, b])
    wide = x.double()
    s = (y := wide * g.double() * a.double().view(1, -1, 1) + b.double().view(1, -1, 1)).sigmoid()
    t, n = s * (1 + y * (1 - s)), wide * 0.5 - 1
    wanted = t - 1e-6 * t.sum((0, 2), keepdim=True) - 1e-6 * n * (t * n).sum((0, 2), keepdim=True)
    assert (made.double() - wanted).norm() <= 1e-6 * wanted.norm()


def test_results() -> None:
    x, g, a, b = torch.randn(3, 5, 7001).bfloat16(), torch.randn(3, 5, 7001).bfloat16(), torch.randn(5), torch.randn(5)
    fd = behind_an_activation()
    with poisoned_outputs():
        (made,) = fd.execute([x, g, a, b])
    wide = x.double()
    y = wide * a.double().view(1, -1, 1) + b.double().view(1, -1, 1)
    s = y.sigmoid()
    t = g.double() * s * (1 + y * (1 - s))
    wanted = t - 1e-6 * t.sum((0, 2), keepdim=True) - 1e-6 * wide * (t * wide).sum((0, 2), keepdim=True)
    assert (made.double() - wanted).norm() <= 4e-3 * wanted.norm()


@pytest.mark.parametrize("sizes", [(64, 3, 96), (37, 5, 34)])
def test_what_is_read_at_other_positions_is_computed_in_both_kernels(sizes: tuple[int, int, int]) -> None:
    """x and its turned halves: exponentials below the largest of each row, and the largest square of each head. x alone is read, by loops and by lookups."""
    half = sizes[2] // 2
    with FusionDefinition() as fd:
        ops = fd.ops
        x = ops.cast(fd.define_tensor(list(sizes), contiguity=True, dtype=DataType.BFloat16), DataType.Float)
        low, high = ops.slice(x, [0, 0, 0], [*sizes[:2], half]), ops.slice(x, [0, 0, half], list(sizes))
        y = ops.add(x, ops.mul(ops.cat([ops.neg(high), low], 2), 0.5))
        fd.add_output(ops.cast(ops.exp(ops.sub(y, ops.max(y, [2], True))), DataType.BFloat16))
        fd.add_output(ops.max(ops.mul(y, y), [0, 2]))
    plan = SharedDefinition(fd.fusion).base.plans.plan_for({}, H200)
    assert len(plan.kernels) == 2 and not plan.edges
    torch.manual_seed(0)
    given = torch.randn(sizes).bfloat16()
    with poisoned_outputs():
        outputs = fd.execute([given])
    wide = given.double()
    wide = wide + torch.cat([-wide[..., half:], wide[..., :half]], 2) * 0.5
    torch.testing.assert_close(outputs[0].double(), (wide - wide.amax(2, keepdim=True)).exp(), rtol=2**-8, atol=1e-6)
    torch.testing.assert_close(outputs[1].double(), wide.square().amax((0, 2)), rtol=1e-5, atol=1e-5)


def above_three_quarters_of_the_maximum(op: str, product: str, *, beside_its_own: bool) -> FusionDefinition:
    """x * a + b, beside its maxima of all samples and pixels, or beside those of a * x. Tensors are [samples, channels, pixels]."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x, _ = (ops.cast(fd.define_tensor([-1] * 3, contiguity=True, dtype=DataType.BFloat16), DataType.Float) for _ in range(2))
        a, b = (ops.broadcast_in_dim(fd.define_tensor([-1], contiguity=True, dtype=DataType.Float), x.shape(), [1]) for _ in range(2))
        p = getattr(ops, product)(x, a)
        y = ops.add(p, b)
        top = ops.broadcast_in_dim(ops.max(y if beside_its_own else ops.mul(x, b), [0, 2]), x.shape(), [1])
        fd.add_output(ops.cast(ops.where(getattr(ops, op)(ops.neg(y), ops.mul(top, -0.75)), 0.0, 1.0), DataType.BFloat16))
    return fd


@pytest.mark.parametrize("op", ["eq", "lt"])
def test_what_is_compared_with_its_own_maximum_has_the_same_bits_in_both_kernels(op: str) -> None:
    """A product and a sum may become one instruction in one of the kernels; products that are rounded by themselves may not."""
    stored = widest_edges(above_three_quarters_of_the_maximum(op, "mul", beside_its_own=True), 32, 3, 1 << 18)
    assert max(stored) == 3
    for product, beside_its_own in (("rounded_mul", True), ("mul", False)):
        assert max(widest_edges(above_three_quarters_of_the_maximum(op, product, beside_its_own=beside_its_own), 32, 3, 1 << 18)) == 1
