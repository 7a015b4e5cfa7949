"""Narrow floats through the automatic path: casts, copies, reductions, normalizations, in every type, with odd sizes, offsets and strides."""

from __future__ import annotations

import pytest
import torch
from narrow_tensors import BESIDE, FP4, NARROW, random_codes, random_tensor, random_values, same_bytes, values

from weft import DataType, FusionDefinition
from weft.options import options
from weft.reference import narrow
from weft.reference.torch_types import torch_dtype

E4M3, FLOAT, BF16 = DataType.Float8_e4m3fn, DataType.Float, DataType.BFloat16


def defined(dtype: DataType, rank: int, compute, contiguity=True) -> FusionDefinition:  # noqa: ANN001
    with FusionDefinition() as fd:
        fd.add_output(compute(fd, fd.define_tensor([-1] * rank, contiguity=contiguity, dtype=dtype)))
    return fd


@pytest.mark.parametrize("narrow_type", NARROW, ids=lambda d: d.name)
def test_casts_to_and_from_a_narrow_type_are_exact(narrow_type):
    """Rows of 2, of one vector, of many, and of sizes that no wide vector divides."""
    with FusionDefinition() as down:
        for wide in BESIDE:
            down.add_output(down.ops.cast(down.define_tensor([-1, -1], contiguity=True, dtype=wide), narrow_type))
    with FusionDefinition() as up:
        x = up.define_tensor([-1, -1], contiguity=True, dtype=narrow_type)
        for wide in BESIDE:
            up.add_output(up.ops.cast(x, wide))
    for shape in [(1, 2), (3, 34), (5, 256), (0, 4)]:
        given = [random_tensor(shape, wide) for wide in BESIDE]
        for x, codes in zip(given, down.execute(given)):
            assert same_bytes(codes, narrow.packed(x, narrow_type))
        for wide, back in zip(BESIDE, up.execute([codes])):
            torch.testing.assert_close(back, narrow.values_of(codes, narrow_type).to(torch_dtype(wide)), atol=0, rtol=0)


@pytest.mark.parametrize("elems", [2, 6, 32, 4096])
def test_a_copy_of_fp4_moves_whole_vectors(elems):
    fd = defined(FP4, 1, lambda fd, x: fd.ops.set(x))
    x = random_codes((elems,), FP4)
    assert same_bytes(fd.execute([x])[0], x)


@pytest.mark.parametrize("offset_bytes", [0, 1, 2, 4, 8, 16])
def test_a_slice_may_begin_at_any_byte(offset_bytes):
    """The vector falls to what the address allows: 2, 4, 8, 16 or 32 elements of 4 bits."""
    fd = defined(FP4, 1, lambda fd, x: fd.ops.cast(x, BF16))
    store = random_codes((4096 + 64,), FP4)
    x = store[offset_bytes : offset_bytes + 2048]
    torch.testing.assert_close(fd.execute([x])[0], values(x, FP4).to(torch.bfloat16), atol=0, rtol=0)


def test_a_wide_slice_may_begin_anywhere_beside_a_packed_result():
    """Vectors of the input begin at odd elements: it is read element by element, and whole bytes are written."""
    fd = defined(BF16, 1, lambda fd, x: fd.ops.cast(x, FP4))
    store = random_values((2049,), BF16)
    for first in (1, 3):
        x = store[first : first + 1024]
        assert same_bytes(fd.execute([x])[0], narrow.packed(x, FP4))


def test_rows_may_be_cut_from_wider_ones():
    """The stride of a row counts twice: 1025 bytes are 2050 elements, so that vectors have two."""
    fd = defined(FP4, 2, lambda fd, x: fd.ops.cast(x, FLOAT), [False, True])
    x = random_codes((7, 2050), FP4)[:, :1024]
    torch.testing.assert_close(fd.execute([x])[0], values(x, FP4).float(), atol=0, rtol=0)


def test_the_packed_axis_may_be_another_than_the_last():
    """What is innermost in memory is packed: sizes of torch count pairs along it."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=FP4, stride_order=[0, 1])
        fd.add_output(fd.ops.cast(x, FLOAT))
    x = random_codes((6, 8), FP4).t()
    torch.testing.assert_close(fd.execute([x])[0], narrow.values_of(x, FP4, 0).float(), atol=0, rtol=0)


@pytest.mark.parametrize("narrow_type", [E4M3, FP4], ids=lambda d: d.name)
@pytest.mark.parametrize("dims", [[1], [0], [0, 1]])
def test_reductions_read_narrow_inputs(narrow_type, dims):
    fd = defined(narrow_type, 2, lambda fd, x: fd.ops.sum(x, dims))
    for shape in [(1, 2), (5, 34), (33, 512), (3, 8194)]:
        fd.validate([random_codes(shape, narrow_type)])


def softmax(fd, x):  # noqa: ANN001, ANN201
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], True)))
    return fd.ops.div(e, fd.ops.sum(e, [1], True))


def rms_norm(fd, x):  # noqa: ANN001, ANN201
    mean = fd.ops.mul(fd.ops.sum(fd.ops.mul(x, x), [1], True), 1.0 / 64)
    return fd.ops.mul(x, fd.ops.rsqrt(fd.ops.add(mean, 1e-5)))


@pytest.mark.parametrize("source", [E4M3, FP4], ids=lambda d: d.name)
@pytest.mark.parametrize("target", [E4M3, FP4], ids=lambda d: d.name)
@pytest.mark.parametrize("norm", [softmax, rms_norm], ids=lambda f: f.__name__)
def test_rows_are_normalized_between_narrow_types(source, target, norm):
    fd = defined(source, 2, lambda fd, x: fd.ops.cast(fd.ops.mul(norm(fd, x), 4.0), target))
    for shape in [(1, 2), (3, 34), (4, 1024)]:
        fd.validate([random_tensor(shape, source)])


@pytest.mark.parametrize("rows", ["register", "tma", "specialized"])
def test_all_ways_to_keep_rows_take_narrow_types(rows):
    with options(rows=rows):
        for source, target in [(E4M3, FP4), (FP4, E4M3), (FP4, BF16)]:
            fd = defined(source, 2, lambda fd, x: fd.ops.cast(rms_norm(fd, x), target))
            fd.validate([random_codes((6, 2048), source)])


def test_columns_are_normalized_into_fp4():
    fd = defined(BF16, 2, lambda fd, x: fd.ops.cast(fd.ops.sub(x, fd.ops.mul(fd.ops.sum(x, [0], True), 0.1)), FP4))
    fd.validate([random_tensor((40, 64), BF16)])


def test_fp4_meets_wider_inputs_and_a_broadcast_scale():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=FP4)
        y = fd.define_tensor([-1, -1], contiguity=True, dtype=BF16)
        scale = fd.define_tensor([-1, 1], contiguity=True, dtype=E4M3)
        z = fd.ops.add(fd.ops.mul(x, scale), y)
        fd.add_output(z)
        fd.add_output(fd.ops.cast(z, FP4))
    for shape in [(1, 2), (7, 66), (16, 256)]:
        fd.validate([random_codes(shape, FP4), random_tensor(shape, BF16), random_codes((shape[0], 1), E4M3)])


def test_a_column_of_codes_is_spread_over_rows():
    """The cast has one element per row; each byte of the result is still written by one thread."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 1], contiguity=True, dtype=FLOAT)
        like = fd.define_tensor([-1, -1], contiguity=True, dtype=FLOAT)
        fd.add_output(fd.ops.cast(fd.ops.add(fd.ops.cast(fd.ops.cast(x, FP4), FLOAT), like), FP4))
    fd.validate([random_tensor((5, 1), FLOAT), random_tensor((5, 16), FLOAT)])


def test_packed_sizes_are_doubled_in_the_definition():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 8], contiguity=True, dtype=DataType.Float4_e2m1fn_x2)
        assert x.dtype() is FP4 and [s.sym.value for s in x.shape()] == [4, 16]
        fd.add_output(fd.ops.relu(fd.ops.cast(x, FLOAT)))
    x = random_codes((4, 16), FP4)
    torch.testing.assert_close(fd.execute([x])[0], values(x, FP4).float().relu(), atol=0, rtol=0)


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("shape", [(8,), (4, 16), (2, 3, 64)])
def test_codes_declared_as_not_contiguous_are_read_in_whole_bytes(shape, is_packed):
    """That is what define_tensor says when it is told nothing. The elements of a byte follow one another all the same."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * len(shape), dtype=DataType.Float4_e2m1fn_x2 if is_packed else FP4)
        fd.add_output(fd.ops.set(x))
        fd.add_output(fd.ops.cast(x, FLOAT))
        fd.add_output(fd.ops.sum(fd.ops.cast(x, FLOAT), -1))
    x = random_codes(shape, FP4)
    copy, wide, total = fd.execute([x])
    assert same_bytes(copy, x)
    torch.testing.assert_close(wide, values(x, FP4).float(), atol=0, rtol=0)
    torch.testing.assert_close(total, values(x, FP4).float().sum(-1))


@pytest.mark.parametrize("shape", [(2,), (3, 2), (1, 2), (4, 1, 2)])
def test_a_dimension_of_one_byte_has_two_elements(shape):
    """It is no broadcast, however the tensor is defined."""
    x = random_codes(shape, FP4)
    packed = list(x.shape)
    forms = [
        lambda fd: fd.from_pytorch(x), lambda fd: fd.from_pytorch(x, static_sizes=True),
        lambda fd: fd.define_tensor(packed, contiguity=True, dtype=DataType.Float4_e2m1fn_x2),
        lambda fd: fd.define_tensor(packed, contiguity=[None if n == 1 else True for n in packed], dtype=DataType.Float4_e2m1fn_x2),
    ]  # fmt: skip
    for form in forms:
        with FusionDefinition() as fd:
            fd.add_output(fd.ops.cast(form(fd), FLOAT))
        torch.testing.assert_close(fd.execute([x])[0], values(x, FP4).float(), atol=0, rtol=0)


@pytest.mark.parametrize("old, new", [(DataType.Int, FP4), (E4M3, FP4), (DataType.Bool, E4M3), (FP4, DataType.Int32), (E4M3, DataType.ComplexFloat)])
def test_casts_without_a_conversion_are_refused(old, new):
    with FusionDefinition() as fd:
        x = fd.define_tensor([4], dtype=old)
        with pytest.raises(RuntimeError, match=f"Illegal Cast value from  DataType: {old.value} to DataType: {new.value}".replace("<", "<")):
            fd.ops.cast(x, new)
        fd.add_output(fd.ops.set(x))


def test_outputs_that_no_byte_can_hold_are_refused_by_name():
    odd = defined(FLOAT, 1, lambda fd, x: fd.ops.cast(x, FP4))
    with pytest.raises(RuntimeError, match="Last dimension of the logical domain is not divisible by the adjustment factor"):
        odd.execute([torch.ones(5)])
    scalar = defined(FLOAT, 1, lambda fd, x: fd.ops.cast(fd.ops.sum(x, [0]), FP4))
    with pytest.raises(RuntimeError, match="rank 0"):
        scalar.execute([torch.ones(4)])


def test_results_of_rows_are_packed_by_a_kernel_of_their_own():
    """Blocks write one result each, and two of 4 bits share a byte: the reduction is cut off from the cast."""
    fd = defined(FLOAT, 2, lambda fd, x: fd.ops.cast(fd.ops.sum(x, [1]), FP4))
    fd.validate([random_tensor((6, 40), FLOAT)])


def test_an_input_whose_pairs_lie_apart_is_refused():
    fd = defined(FP4, 2, lambda fd, x: fd.ops.cast(x, FLOAT), [False, False])
    with pytest.raises(RuntimeError, match="Stride must be a multiple of 8 bits"):
        fd.execute([random_codes((4, 16), FP4).t()])


@pytest.mark.parametrize("dtype", [DataType.Byte, DataType.Char], ids=lambda d: d.name)
def test_integers_of_8_bits_are_types_too(dtype):
    name = torch_dtype(dtype)
    x = torch.arange(200, dtype=torch.int32).to(name).reshape(5, 40)
    fd = defined(dtype, 2, lambda fd, x: fd.ops.add(x, x))
    assert torch.equal(fd.execute([x])[0], x + x)
    fd = defined(dtype, 2, lambda fd, x: fd.ops.sum(x, [1]))
    assert torch.equal(fd.execute([x])[0], x.sum(1))
    fd = defined(dtype, 2, lambda fd, x: fd.ops.max(x, [0]))
    assert torch.equal(fd.execute([x])[0], x.amax(0))
    fd = defined(DataType.Float, 2, lambda fd, x: fd.ops.cast(x, dtype))
    assert torch.equal(fd.execute([x.float()])[0], x)


@pytest.mark.parametrize("shape", [(64, 64), (128, 96), (66, 130), (2, 6)])
def test_codes_are_transposed_one_by_one(shape):
    """Not bytes: what shares one changes."""
    fd = defined(FP4, 2, lambda fd, x: fd.ops.cast(fd.ops.permute(fd.ops.cast(x, FLOAT), [1, 0]), FP4))
    x = random_codes(shape, FP4)
    assert same_bytes(fd.execute([x])[0], narrow.packed(values(x, FP4).t().contiguous(), FP4))


def test_parts_of_packed_rows_begin_and_end_anywhere():
    """Slices, pads, cats and lookups along the packed axis, at odd places: read one by one, written in whole bytes."""
    for first, last in [(1, 17), (3, 64), (0, 63), (5, 6)]:
        fd = defined(FP4, 2, lambda fd, x: fd.ops.slice(fd.ops.cast(x, FLOAT), [0, first], [5, last]))
        x = random_codes((5, 64), FP4)
        torch.testing.assert_close(fd.execute([x])[0], values(x, FP4).float()[:, first:last], atol=0, rtol=0)
    fd = defined(FP4, 2, lambda fd, x: fd.ops.cast(fd.ops.slice(fd.ops.cast(x, FLOAT), [0, 1], [5, 33]), FP4))
    assert same_bytes(fd.execute([x])[0], narrow.packed(values(x, FP4)[:, 1:33], FP4))
    fd = defined(FP4, 2, lambda fd, x: fd.ops.cast(fd.ops.pad(fd.ops.cast(x, FLOAT), [1, 3]), FP4))
    assert same_bytes(fd.execute([x])[0], narrow.packed(torch.nn.functional.pad(values(x, FP4), [1, 3]), FP4))
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([-1, -1], contiguity=True, dtype=FP4) for _ in range(2))
        fd.add_output(fd.ops.cast(fd.ops.cat([fd.ops.slice(fd.ops.cast(a, FLOAT), [0, 0], [5, 7]), fd.ops.slice(fd.ops.cast(b, FLOAT), [0, 1], [5, 64])], 1), FP4))
    y = random_codes((5, 66), FP4)[:, :32]
    y = random_codes((6, 64), FP4)[1:]
    assert same_bytes(fd.execute([x, y])[0], narrow.packed(torch.cat([values(x, FP4)[:, :7], values(y, FP4)[:, 1:]], 1), FP4))
    with FusionDefinition() as fd:
        a, index = fd.define_tensor([-1, -1], contiguity=True, dtype=FP4), fd.define_tensor([-1], dtype=DataType.Int)
        fd.add_output(fd.ops.cast(fd.ops.index_select(fd.ops.cast(a, FLOAT), index, 1), FP4))
        fd.add_output(fd.ops.index_select(fd.ops.cast(a, FLOAT), index, 1))
    places = torch.tensor([5, 0, 63, 1, 1, 2])
    packed, plain = fd.execute([x, places])
    assert same_bytes(packed, narrow.packed(values(x, FP4)[:, places], FP4))
    torch.testing.assert_close(plain, values(x, FP4).float()[:, places], atol=0, rtol=0)


def test_two_million_codes_are_copied():
    fd = defined(FP4, 1, lambda fd, x: fd.ops.set(x))
    x = random_codes((1 << 21,), FP4)
    assert same_bytes(fd.execute([x])[0], x)


@pytest.mark.parametrize("wide", BESIDE, ids=lambda d: d.name)
def test_rows_that_hold_every_code_are_exact_both_ways(wide):
    """As nvFuser's first test of 4 bits: (2^20, 16), each row with all sixteen codes."""
    codes = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE], dtype=torch.uint8).repeat(1 << 20, 1).view(torch_dtype(FP4))
    row = narrow.values_of(codes[:1], FP4).to(torch_dtype(wide))
    up = defined(FP4, 2, lambda fd, x: fd.ops.cast(x, wide)).execute([codes])[0]
    assert torch.equal(up, row.expand(1 << 20, 16)) and torch.equal(torch.signbit(up[-1]), torch.signbit(row[0]))
    assert same_bytes(defined(wide, 2, lambda fd, x: fd.ops.cast(x, FP4)).execute([up])[0], codes)


def test_a_transposed_input_whose_neighbours_lie_apart_is_read_one_by_one():
    """The tile's other inputs keep their vectors. Random fusion 1545 of --narrow."""
    with FusionDefinition() as fd:
        codes = fd.define_tensor([-1, -1], contiguity=True, dtype=FP4)
        turned = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float, stride_order=[0, 1])
        apart = fd.define_tensor([-1, -1], contiguity=[False, False], dtype=E4M3, stride_order=[0, 1])
        both = fd.ops.mul(fd.ops.cast(apart, DataType.Float), turned)
        fd.add_output(fd.ops.cast(codes, DataType.Float))
        fd.add_output(fd.ops.cast(fd.ops.add(both, fd.ops.cast(codes, DataType.Float)), E4M3))
    x, y = random_codes((256, 128), FP4), random_values((128, 256), DataType.Float).t()
    wide = random_codes((128, 512), E4M3)
    with options(strict_schedules=True):
        fd.validate([x, y, wide[:, ::2].t()])
    assert "transpose" in {runtime.scheduler for runtime in fd.fec.kernel_runtimes}


def test_a_cast_down_and_up_again_is_kept_and_one_up_and_down_is_a_copy():
    """float -> FP4 -> float rounds; FP4 -> float -> FP4 gives the same codes."""
    with FusionDefinition() as fd:
        x, codes = fd.define_tensor([-1, -1], contiguity=True, dtype=FLOAT), fd.define_tensor([-1, -1], contiguity=True, dtype=FP4)
        fd.add_output(fd.ops.cast(fd.ops.cast(x, FP4), FLOAT))
        fd.add_output(fd.ops.cast(fd.ops.cast(codes, FLOAT), FP4))
    x, codes = random_values((6, 64), FLOAT), random_codes((6, 64), FP4)
    rounded, same = fd.execute([x, codes])
    assert same_bytes(same, codes) and not torch.equal(rounded, x)
    torch.testing.assert_close(rounded.double(), narrow.values_of(narrow.packed(x, FP4), FP4), atol=0, rtol=0)


def test_bytes_and_packed_codes_of_one_shape_are_not_taken_for_each_other():
    """Same torch sizes, same bytes: the type is part of the key of a call, and of what a definition takes."""
    codes = random_codes((4, 64), FP4)
    bytes_ = codes.view(torch.uint8)
    packed = defined(FP4, 2, lambda fd, x: fd.ops.cast(x, FLOAT))
    plain = defined(DataType.Byte, 2, lambda fd, x: fd.ops.cast(x, FLOAT))
    assert packed.execute([codes])[0].shape == (4, 64) and plain.execute([bytes_])[0].shape == (4, 32)
    for fd, wrong in ((packed, bytes_), (plain, codes)):
        with pytest.raises(RuntimeError):
            fd.execute([wrong])


@pytest.mark.parametrize("kind", [E4M3, FP4], ids=lambda d: d.name)
def test_norm_backward_takes_narrow_types(kind):
    """Rows and columns from one read: the gradient of an RMS norm from a narrow one, into a narrow one, and the weight's."""
    with FusionDefinition() as fd:
        g, x = (fd.define_tensor([-1, -1], contiguity=True, dtype=d) for d in (kind, BF16))
        w = fd.define_tensor([-1], contiguity=True, dtype=BF16)
        g, x, w = (fd.ops.cast(t, FLOAT) for t in (g, x, w))
        r = fd.ops.rsqrt(fd.ops.add(fd.ops.mean(fd.ops.mul(x, x), [1], True), 1e-5))
        hat, scaled = fd.ops.mul(x, r), fd.ops.mul(g, fd.ops.broadcast(w, [True, False]))
        inner = fd.ops.mean(fd.ops.mul(scaled, hat), [1], True)
        fd.add_output(fd.ops.cast(fd.ops.mul(r, fd.ops.sub(scaled, fd.ops.mul(hat, inner))), kind))
        fd.add_output(fd.ops.sum(fd.ops.mul(g, hat), [0]))
    for shape in ((33, 256), (5, 1056)):
        with options(strict_schedules=True):
            fd.validate([random_codes(shape, kind), random_values(shape, BF16), random_values(shape[1:], BF16)])
    assert "inner_outer_persistent" in {runtime.scheduler for runtime in fd.fec.kernel_runtimes}


@pytest.mark.parametrize("view", ["rows of 3", "5 of 24 columns", "one column"])
def test_views_that_split_a_byte_are_refused_by_name(view):
    """As results of 4 bits; of their values in a wider type they are none."""
    views = {
        "rows of 3": lambda fd, x: fd.ops.reshape(x, [32, 3]), "5 of 24 columns": lambda fd, x: fd.ops.slice(x, [0, 1], [4, 6]),
        "one column": lambda fd, x: fd.ops.slice(x, [0, 2], [4, 3]),
    }  # fmt: skip
    x = random_codes((4, 24), FP4)
    fd = defined(FP4, 2, lambda fd, x: views[view](fd, x)) if view != "rows of 3" else static(lambda fd, x: views[view](fd, x))
    with pytest.raises(RuntimeError, match=r"Last dimension of the logical domain is not divisible by the adjustment factor. \(output T\d+_g___e2m1"):
        fd.execute([x])
    wide = static(lambda fd, x: fd.ops.cast(views[view](fd, x), FLOAT)).execute([x])[0]
    values_of_x = values(x, FP4).float()
    wanted = {"rows of 3": values_of_x.view(32, 3), "5 of 24 columns": values_of_x[:, 1:6], "one column": values_of_x[:, 2:3]}[view]
    torch.testing.assert_close(wide, wanted, atol=0, rtol=0)


def static(compute) -> FusionDefinition:  # noqa: ANN001
    """A definition of codes of fixed sizes, which may be reshaped."""
    with FusionDefinition() as fd:
        fd.add_output(compute(fd, fd.define_tensor([4, 24], contiguity=True, dtype=FP4)))
    return fd


def test_parts_that_begin_in_a_byte_are_copied_to_be_stored():
    """A lookup's own result is stored one by one; behind a copy, two of its elements at once."""
    for part, wanted in (
        (lambda fd, x: fd.ops.slice(x, [0, 1], [4, 7]), lambda v: v[:, 1:7]), (lambda fd, x: fd.ops.pad(x, [1, 1]), lambda v: torch.nn.functional.pad(v, [1, 1])),
    ):  # fmt: skip
        x = random_codes((4, 24), FP4)
        found = static(lambda fd, x: fd.ops.set(part(fd, x))).execute([x])[0]
        assert same_bytes(found, narrow.packed(wanted(values(x, FP4)), FP4))
        with pytest.raises(RuntimeError, match="Float4_e2m1fn needs vectors of 2"):
            static(part).execute([x])
