"""Reductions over groups of neighbours behind a norm of the whole row, in one kernel that reads the row once. Compared with torch in float64.

Codes of narrow types are compared as quotients: a code is right if the float64 quotient is at most half a step away, and as much more as the float32 quotient is
wrong. A norm, its scale and the division have at most a dozen roundings of 2^-24, and a quotient is at most 16 steps of e4m3 (127 of int8): less than 2^-10 steps.
"""

from __future__ import annotations

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.ir.enums import SchedulerType
from weft.options import options
from weft.schedulers.inner_persistent import InnerPersistent

TORCH = {DataType.BFloat16: torch.bfloat16, DataType.Half: torch.float16, DataType.Float: torch.float32}
LARGEST = {DataType.Float8_e4m3fn: 448.0, DataType.Char: 127.0}
BEYOND = 2.0**-10
"""Steps that a code may be off, besides rounding."""
E4M3_MANTISSA, E4M3_LEAST = 3, -9
"""Bits behind the leading one; exponent of the smallest number and step."""


def quantized_norm(
    group: int, dtype: DataType = DataType.BFloat16, to: DataType = DataType.Float8_e4m3fn, shape: tuple[int, int] = (-1, -1)
) -> FusionDefinition:
    """A residual, its RMS norm with a weight, and the norm in groups of so many elements with a scale each: codes, scales, the residual."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x, r = (ops.cast(fd.define_tensor(list(shape), contiguity=True, dtype=dtype), DataType.Float) for _ in range(2))
        w = ops.broadcast_in_dim(ops.cast(fd.define_tensor([-1], contiguity=True, dtype=dtype), DataType.Float), x.shape(), [1])
        h = ops.add(x, r)
        y = ops.mul(ops.mul(h, ops.rsqrt(ops.add(ops.mean(ops.mul(h, h), [1], keepdim=True), 1e-5))), w)
        y = ops.reshape(y, [x.size(0), ops.div(x.size(1), group), group])
        scale = ops.div(ops.maximum(ops.max(ops.abs(y), [2], True), 1e-10), LARGEST[to])
        q = ops.div(y, scale)
        q = ops.cast(ops.round(q) if to is DataType.Char else q, to)
        for out in (ops.reshape(q, [x.size(0), x.size(1)]), ops.squeeze(scale, [2]), ops.cast(h, dtype)):
            fd.add_output(out)
    return fd


def numbers(dtype: DataType, rows: int, width: int) -> list[torch.Tensor]:
    """Numbers whose sums are exact in bfloat16, so that the residual is what its norm reads, and a weight."""
    made = torch.Generator().manual_seed(rows + width)
    x, r = (torch.randint(-64, 65, (rows, width), generator=made) / 32 for _ in range(2))
    return [t.to(TORCH[dtype]) for t in (x, r, torch.randn(width, generator=made))]


def check_codes(got: torch.Tensor, quotient: torch.Tensor) -> None:
    """Check that codes are the nearest to float64 quotients."""
    step = torch.ones_like(quotient)
    if got.dtype.is_floating_point:
        exponent = torch.floor(torch.log2(torch.maximum(quotient.abs(), got.double().abs()).clamp(min=1e-30)))
        step = torch.exp2((exponent - E4M3_MANTISSA).clamp(min=E4M3_LEAST))
    assert ((got.double() - quotient).abs() <= (0.5 + BEYOND) * step).all()


def check(fd: FusionDefinition, group: int, given: list[torch.Tensor], kernels: int = 1) -> str:
    """Run twice, bit for bit the same; compare with float64; return the text of the kernel."""
    with poisoned_outputs(), options(check="races", strict_schedules=True):
        first, again = fd.execute(given), fd.execute(given)
    q, scale, h = first
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(first, again))
    x, r, w = (t.double() for t in given)
    assert torch.equal(h.double(), x + r)
    y = ((x + r) * ((x + r).square().mean(1, keepdim=True) + 1e-5).rsqrt() * w).view(x.shape[0], -1, group)
    want = y.abs().amax(2).clamp(min=1e-10) / LARGEST[DataType.Char if q.dtype is torch.int8 else DataType.Float8_e4m3fn]
    torch.testing.assert_close(scale.double(), want, rtol=2.0**-20, atol=0)  # a mean, a root, a product and a quotient
    check_codes(q.view(y.shape), y / want[:, :, None])
    assert len(fd.fec.kernel_runtimes) == kernels
    return "\n".join(r.program.text for r in fd.fec.kernel_runtimes)


@pytest.mark.parametrize(("group", "rows", "width"), [
    (128, 5, 4096), (128, 3, 4224), (128, 7, 384), (64, 5, 8192), (32, 9, 736), (16, 4, 48), (16, 3, 6160), (8, 5, 40), (4, 5, 20),
    (2, 3, 14), (1024, 2, 3072), (512, 3, 2560), (256, 4, 7168),
])  # fmt: skip
@pytest.mark.parametrize("dtype", TORCH)
def test_groups_of_powers_of_two_behind_a_norm(group: int, rows: int, width: int, dtype: DataType) -> None:
    """Within a thread, in some lanes, in whole warps."""
    check(quantized_norm(group, dtype), group, numbers(dtype, rows, width))


@pytest.mark.parametrize(("group", "rows", "width"), [
    (96, 5, 4608), (96, 3, 288), (160, 4, 960), (24, 6, 120), (12, 5, 36), (6, 3, 12), (3, 7, 33), (127, 3, 889), (100, 2, 1000), (7, 4, 2030),
    (384, 2, 2688), (72, 9, 72 * 31),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [DataType.BFloat16, DataType.Float])
def test_groups_of_other_sizes_meet_in_shared_memory(group: int, rows: int, width: int, dtype: DataType) -> None:
    assert f"{group}, " in check(quantized_norm(group, dtype), group, numbers(dtype, rows, width))


@pytest.mark.parametrize(("group", "width"), [(128, 4096), (96, 480), (8, 40)])
def test_integers_of_8_bits(group: int, width: int) -> None:
    check(quantized_norm(group, to=DataType.Char), group, numbers(DataType.BFloat16, 5, width))


@pytest.mark.parametrize("group", [128, 96, 1])
def test_one_group_and_groups_of_one_element(group: int) -> None:
    """One group is the row, and of one element each is its own maximum."""
    check(quantized_norm(group), group, numbers(DataType.BFloat16, 3, group if group > 1 else 200))


@pytest.mark.parametrize(("group", "width"), [(128, 1152), (96, 9216), (16, 32)])
def test_one_row(group: int, width: int) -> None:
    check(quantized_norm(group, shape=(1, width)), group, numbers(DataType.BFloat16, 1, width))


@pytest.mark.parametrize("group", [128, 96])
def test_no_rows(group: int) -> None:
    given = numbers(DataType.BFloat16, 0, 4 * group)
    fd = quantized_norm(group)
    assert [tuple(t.shape) for t in fd.execute(given)] == [(0, 4 * group), (0, 4), (0, 4 * group)]


def test_too_many_threads_for_a_group_take_two_kernels() -> None:
    """127 elements, one in a thread: 32 groups of 127 threads would begin together with a warp."""
    fd = quantized_norm(127)
    check(fd, 127, numbers(DataType.BFloat16, 3, 16 * 127), kernels=2)


@pytest.mark.parametrize(("group", "rows", "width"), [(16, 5, 4096), (128, 3, 384), (24, 7, 120), (2, 3, 14), (3, 1, 33), (16, 0, 64)])
@pytest.mark.parametrize("dtype", TORCH)
def test_scales_alone_behind_a_norm(group: int, rows: int, width: int, dtype: DataType) -> None:
    """No element gets the result of its group."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x = ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=dtype), DataType.Float)
        y = ops.mul(x, ops.rsqrt(ops.add(ops.mean(ops.mul(x, x), [1], keepdim=True), 1e-5)))
        fd.add_output(ops.max(ops.abs(ops.reshape(y, [x.size(0), ops.div(x.size(1), group), group])), [2]))
    (given, *_) = numbers(dtype, rows, width)
    with poisoned_outputs(), options(check="races", strict_schedules=True):
        (out,) = fd.execute([given])
    y = given.double() * (given.double().square().mean(1, keepdim=True) + 1e-5).rsqrt()
    torch.testing.assert_close(out.double(), y.view(rows, width // group, group).abs().amax(2), rtol=2.0**-20, atol=0)
    assert len(fd.fec.kernel_runtimes) == (rows > 0)


def test_the_row_is_read_once() -> None:
    text = check(quantized_norm(128), 128, numbers(DataType.BFloat16, 5, 4096))
    assert text.count("load_global_vector<8") == 3 and text.count("fold_group<weft::Max, 8, 128, 16, 16>") == 1  # x, r and the weight


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_a_number_counts(bad: float) -> None:
    """As in torch: the scale of its row, or group, is not a number or infinite."""
    x, r, w = numbers(DataType.BFloat16, 3, 512)
    w[200] = bad
    with options(check="races"):
        _, scale, _ = quantized_norm(128).execute([x, r, w])
    assert torch.isfinite(scale[:, [0, 2, 3]]).all() and not torch.isfinite(scale[:, 1]).any()


@pytest.fixture
def forced(monkeypatch):
    """Let the kernel be the `number`th candidate of a way."""

    def force(way: str, number: int) -> list[str]:
        made: list[str] = []

        def choose(self, analysis, sizes, alignment_bits, arch, _way):
            found = [params for name, params in self.candidates(analysis, sizes, alignment_bits, arch) if name == way]
            made.append(str(found[min(number, len(found) - 1)]))
            return found[min(number, len(found) - 1)], "forced"

        candidates = InnerPersistent.candidates
        monkeypatch.setattr(InnerPersistent, "choose_way", choose)
        monkeypatch.setattr(InnerPersistent, "candidates", lambda self, *given: _unforced(candidates, self, given))
        return made

    def _unforced(candidates, self, given):
        with monkeypatch.context() as patch:
            patch.setattr(InnerPersistent, "choose_way", CHOOSE_WAY)
            return candidates(self, *given)

    return force


CHOOSE_WAY = InnerPersistent.choose_way


@pytest.mark.parametrize(("way", "group", "width"), [
    ("register, one block", 128, 4224), ("register, one block", 96, 4608), ("register, one block", 512, 7680), ("register, cluster", 128, 40960),
    ("register, cluster", 16, 33280), ("shared, one block", 128, 4224), ("shared, one block", 96, 4896), ("reread, one block", 128, 4224),
    ("reread, one block", 96, 4896), ("reread, one block", 512, 7680), ("tma", 128, 4224), ("tma", 16, 4112), ("specialized", 128, 4224),
    ("specialized", 64, 8192),
])  # fmt: skip
@pytest.mark.parametrize("number", [0, 1, 5])
def test_every_way_to_keep_rows(forced, way: str, group: int, width: int, number: int) -> None:
    made = forced(way, number)
    check(quantized_norm(group), group, numbers(DataType.BFloat16, 3, width))
    assert made


def four_bits(group: int, scales: DataType, flat: bool) -> FusionDefinition:
    """A norm, and groups of numbers of 4 bits with narrow scales: NVFP4, MXFP4. flat: rows in the result are not divided into groups."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x = ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16), DataType.Float)
        y = ops.mul(x, ops.rsqrt(ops.add(ops.mean(ops.mul(x, x), [1], keepdim=True), 1e-5)))
        g = ops.reshape(y, [x.size(0), ops.div(x.size(1), group), group])
        scale = ops.cast(ops.div(ops.max(ops.abs(g), [2], True), 6.0), scales)
        q = ops.cast(ops.div(g, ops.cast(scale, DataType.Float)), DataType.Float4_e2m1fn)
        fd.add_output(ops.reshape(q, [x.size(0), x.size(1)]) if flat else q)
        fd.add_output(ops.squeeze(scale, [2]))
    return fd


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


@pytest.mark.parametrize(("group", "scales"), [(16, DataType.Float8_e4m3fn), (32, DataType.Float8_e8m0fnu), (48, DataType.Float8_e4m3fn)])
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize(("rows", "groups"), [(3, 23), (5, 128)])
def test_numbers_of_4_bits_with_narrow_scales(group: int, scales: DataType, flat: bool, rows: int, groups: int) -> None:
    """Scales are rounded as their type is; codes are the nearest to quotients by these scales."""
    x = numbers(DataType.BFloat16, rows, group * groups)[0]
    fd = four_bits(group, scales, flat)
    with poisoned_outputs(), options(check="races", strict_schedules=True):
        q, scale = fd.execute([x])
    assert len(fd.fec.kernel_runtimes) == 1
    y = (x.double() * (x.double().square().mean(1, keepdim=True) + 1e-5).rsqrt()).view(rows, groups, group)
    want, got = y.abs().amax(2) / 6, scale.double()
    exponent = torch.floor(torch.log2(want))
    step = torch.exp2((exponent - E4M3_MANTISSA).clamp(min=E4M3_LEAST)) * (0.5 + BEYOND) if scales is DataType.Float8_e4m3fn else want
    assert ((got - want).abs() <= step).all() and (scales is not DataType.Float8_e8m0fnu or (got >= want * (1 - 2.0**-20)).all())  # e8m0 rounds up
    codes = q.view(torch.uint8).view(rows, -1)
    codes = torch.stack([codes & 15, codes >> 4], -1).view(y.shape).long()
    values = E2M1[codes & 7] * (1 - 2 * (codes >> 3))
    quotient = (y / got[:, :, None]).clamp(-6, 6)
    nearest = (quotient.abs()[..., None] - E2M1).abs().amin(-1)
    assert ((values - quotient).abs() <= nearest + 2.0**-16).all()


def test_a_schedule_that_the_user_asks_for() -> None:
    """The definition itself is scheduled, and its results have the sizes that were asked for."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 4, 48], contiguity=True, dtype=DataType.Float)
        y = fd.ops.mul(x, fd.ops.rsqrt(fd.ops.add(fd.ops.mean(fd.ops.mul(x, x), [1, 2], keepdim=True), 1e-5)))
        amax = fd.ops.max(fd.ops.abs(y), [2], True)
        for out in (fd.ops.div(y, amax), amax):
            fd.add_output(out)
    given = torch.randn(7, 4, 48)
    fd.sched.schedule(fd.fusion, SchedulerType.inner_persistent, [given])
    with poisoned_outputs(), options(check="races"):
        share, amax = fd.manual_execute([given])
    y = given.double() * (given.double().square().mean((1, 2), keepdim=True) + 1e-5).rsqrt()
    torch.testing.assert_close(amax.double(), y.abs().amax(2, keepdim=True), rtol=1e-6, atol=0)
    torch.testing.assert_close(share.double(), y / y.abs().amax(2, keepdim=True), rtol=1e-6, atol=1e-9)


def groups_of(order: list[int], has_columns: bool = False, is_variance: bool = False) -> FusionDefinition:
    """A norm over the last three axes, [rows, 3, 4, 16], and groups of the last two; the input lies in memory in the given order, outermost axis first."""
    with FusionDefinition() as fd:
        ops, within = fd.ops, [1, 2, 3]
        x = fd.define_tensor(shape=[-1, 3, 4, 16], contiguity=True, dtype=DataType.Float, stride_order=[3 - order.index(n) for n in range(4)])
        y = x if is_variance else ops.mul(x, ops.rsqrt(ops.add(ops.mean(ops.mul(x, x), within, keepdim=True), 1e-5)))
        y = ops.div(y, ops.add(ops.max(ops.abs(y), [2, 3], True), 0.5))
        outputs = [y, *([ops.sum(y, [0])] if has_columns else []), *(ops.var_mean(y, within, correction=0) if is_variance else [])]
        for out in outputs:
            fd.add_output(out)
    return fd


@pytest.mark.parametrize(("order", "fields", "is_one"), [
    ([0, 1, 2, 3], {}, True), ([1, 0, 2, 3], {}, True),  # the second: a row lies in three runs
    ([0, 2, 1, 3], {}, False), ([0, 1, 3, 2], {}, False), ([3, 0, 1, 2], {}, False),  # elements of a group are no neighbours in memory
    ([0, 1, 2, 3], dict(has_columns=True), False),  # no kernel for rows and columns holds groups
    ([0, 1, 2, 3], dict(is_variance=True), True),  # mean and variance need two passes over the row, of which the second is over groups, too
])  # fmt: skip
def test_rows_in_any_order(order: list[int], fields: dict[str, bool], is_one: bool) -> None:
    """Whatever takes them, schedulers that accept them make kernels that are right."""
    given = torch.randn([5, 3, 4, 16]).permute(order).contiguous().permute([order.index(n) for n in range(4)])
    fd = groups_of(order, **fields)
    with poisoned_outputs(), options(check="races", strict_schedules=True):
        got = fd.execute([given])
    y = given.double()
    if not fields.get("is_variance"):
        y = y * (y.square().mean((1, 2, 3), keepdim=True) + 1e-5).rsqrt()
    y = y / (y.abs().amax((2, 3), keepdim=True) + 0.5)
    more = [y.sum(0)] if fields.get("has_columns") else list(torch.var_mean(y, (1, 2, 3), correction=0)) if fields.get("is_variance") else []
    for out, want in zip(got, [y, *more], strict=True):
        torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    assert (len(fd.fec.kernel_runtimes) == 1) is is_one
