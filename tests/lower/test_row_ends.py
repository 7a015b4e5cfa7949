"""Rows whose length is no multiple of a vector, in vectors that are aligned in memory: results of every width and fusion, and what falls back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import weft.compiler as compiler
from weft import DataType, FusionDefinition
from weft.arch import H200
from weft.runtime.limits import WrongAssumption, check_limits, launch_sizes
from weft.schedulers.persistent_params import PersistentParams

TYPES = {torch.bfloat16: DataType.BFloat16, torch.float16: DataType.Half, torch.float32: DataType.Float}
ERROR = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2e-6}
"""Half a unit in the last place of the result, and for float32 what sums of up to 50,000 terms in float lose."""
by_dtype = pytest.mark.parametrize("dtype", TYPES, ids=lambda d: str(d)[6:])


def matrix(fd: FusionDefinition, dtype: torch.dtype, rank: int = 2):
    return fd.define_tensor(shape=[-1] * rank, contiguity=True, dtype=TYPES[dtype])


def softmax(dtype: torch.dtype, rank: int = 2, *, in_place: bool = False, out: torch.dtype | None = None) -> FusionDefinition:
    with FusionDefinition() as fd:
        source = matrix(fd, dtype, rank)
        x = fd.ops.cast(source, DataType.Float)
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims=[-1], keepdim=True)))
        result = fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, dims=[-1], keepdim=True)), TYPES[out or dtype])
        fd.add_output(result, source) if in_place else fd.add_output(result)
    return fd


def add_rms_norm(dtype: torch.dtype) -> FusionDefinition:
    """The sum of two inputs, and its norm times a weight."""
    with FusionDefinition() as fd:
        total = fd.ops.add(fd.ops.cast(matrix(fd, dtype), DataType.Float), fd.ops.cast(matrix(fd, dtype), DataType.Float))
        weight = fd.ops.cast(matrix(fd, dtype, 1), DataType.Float)
        columns = fd.ops.cast(fd.ops.size(total, 1), DataType.Float)
        mean = fd.ops.div(fd.ops.sum(fd.ops.mul(total, total), dims=[1], keepdim=True), columns)
        norm = fd.ops.mul(fd.ops.mul(total, fd.ops.rsqrt(fd.ops.add(mean, fd.define_scalar(1e-5)))), weight)
        fd.add_output(fd.ops.cast(total, TYPES[dtype]))
        fd.add_output(fd.ops.cast(norm, TYPES[dtype]))
    return fd


def add_rms_norm_of(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    total = x.double() + y.double()
    return [total, total * (total.square().mean(1, keepdim=True) + 1e-5).rsqrt() * weight.double()]


def layer_norm(dtype: torch.dtype, *, dropout: bool = False) -> FusionDefinition:
    """Of the input, or of what dropout leaves of it, whose random numbers are an output too."""
    with FusionDefinition() as fd:
        source = matrix(fd, dtype)
        x = fd.ops.cast(source, DataType.Float)
        if dropout:
            random = fd.ops.uniform(fd.define_scalar(0.0), fd.define_scalar(1.0), shape=fd.ops.shape(source), dtype=DataType.Float)
            x = fd.ops.where(fd.ops.gt(random, fd.define_scalar(0.25)), x, fd.define_scalar(0.0))
            fd.add_output(random)
        weight, bias = (fd.ops.cast(matrix(fd, dtype, 1), DataType.Float) for _ in range(2))
        var, mean = fd.ops.var_mean(x, dims=[1], correction=0, keepdim=True)
        norm = fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(var, fd.define_scalar(1e-5))))
        fd.add_output(fd.ops.cast(fd.ops.add(fd.ops.mul(norm, weight), bias), TYPES[dtype]))
    return fd


def is_phased(fd: FusionDefinition) -> bool:
    """Tell whether the last call read its rows in aligned vectors."""
    return fd.fec.kernel_runtimes[-1].proposal.params.is_phased


def assert_close(out: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(out.double(), expected, rtol=ERROR[dtype], atol=ERROR[dtype] * float(expected.abs().max()))


@by_dtype
def test_every_odd_width(dtype):
    """Of few lanes, some have no vector, and yet an element at the ends."""
    fd = softmax(dtype)
    for rows, columns in zip([9, 8, 7, 6, 5, 4, 3, 2, 1] * 6, range(1, 101, 2)):
        x = torch.randn(rows, columns).to(dtype)
        (out,) = fd.execute([x])
        assert is_phased(fd) == (columns >= (32 if dtype is torch.float32 else 64))
        assert_close(out, torch.softmax(x.double(), 1), dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("columns", [1009, 8193, 24593])
def test_rows_that_begin_anywhere_have_full_parts_as_well(dtype, columns, monkeypatch):
    """The loop over the parts in which every vector is whole asks for nothing, the last part for its vectors, each end for its element."""
    fd = softmax(dtype)
    monkeypatch.setattr(PersistentParams, "fill_of", lambda params, facts: "leading")
    x = torch.randn(5, columns).to(dtype)
    (out,) = fd.execute([x])
    program = fd.fec.kernel_runtimes[-1].program
    assert is_phased(fd) and ", whole" in program.text and ", the rest" in program.text and "if (row_end <" in program.text
    assert_close(out, torch.softmax(x.double(), 1), dtype)
    rows, length = (axis.sym for axis in fd.fusion.inputs()[0].get_logical_domain())
    shorter = {rows: 5, length: 505}
    with pytest.raises(WrongAssumption, match="was made for"):
        check_limits(program, shorter, launch_sizes(program, shorter), H200)


@by_dtype
@pytest.mark.parametrize(("rows", "columns"), [(9, 65), (8, 127), (5, 257), (3, 513), (4, 1009), (3, 4093), (2, 10007), (2, 24593)])
def test_fusions_of_several_tensors(dtype, rows, columns):
    x, y = torch.randn(2, rows, columns).to(dtype)
    weight, bias = torch.randn(2, columns).to(dtype)
    fd = add_rms_norm(dtype)
    outs = fd.execute([x, y.clone(), weight])
    assert is_phased(fd)
    for out, expected in zip(outs, add_rms_norm_of(x, y, weight)):
        assert_close(out, expected, dtype)
    fd = layer_norm(dtype)
    (out,) = fd.execute([x, weight, bias.clone()])
    assert_close(out, torch.nn.functional.layer_norm(x.double(), (columns,), weight.double(), bias.double(), 1e-5), dtype)


@pytest.mark.parametrize("columns", [513, 2049, 40009, 65537])
def test_rows_of_a_block_and_of_a_cluster(columns):
    """Of a cluster, the first block has the ends."""
    dtype = torch.bfloat16
    fd = softmax(dtype)
    x = torch.randn(3, columns).to(dtype)
    (out,) = fd.execute([x])
    assert is_phased(fd) and (fd.fec.kernel_runtimes[-1].proposal.params.cluster_blocks > 1) == (columns > 40000)
    assert_close(out, torch.softmax(x.double(), 1), dtype)


@pytest.mark.parametrize("columns", [129, 1009, 4097])
def test_random_numbers_are_those_of_any_other_schedule(columns):
    dtype = torch.bfloat16
    weight, bias = torch.randn(2, columns).to(dtype)
    base = torch.randn(7 * columns + 8).to(dtype)
    aligned, apart = base[: 7 * columns].view(7, columns), base[1 : 7 * columns + 1].view(7, columns)
    fd, found = layer_norm(dtype, dropout=True), []
    for x in (aligned, apart):
        torch.manual_seed(7)
        random, out = fd.execute([x, weight, bias.clone()])
        found.append(random)
        assert is_phased(fd) == (x is aligned)
        kept = torch.where(random.double() > 0.25, x.double(), 0.0)
        assert_close(out, torch.nn.functional.layer_norm(kept, (columns,), weight.double(), bias.double(), 1e-5), dtype)
    assert torch.equal(*found)


@pytest.mark.parametrize("columns", [65, 1025, 5001])
def test_rows_that_are_written_over_their_input(columns):
    fd = softmax(torch.bfloat16, in_place=True)
    x = torch.randn(5, columns).bfloat16()
    expected = torch.softmax(x.double(), 1)
    fd.execute([x])
    assert is_phased(fd)
    assert_close(x, expected, torch.bfloat16)


def test_rows_of_several_axes_and_outputs_wider_than_inputs():
    fd = softmax(torch.bfloat16, 3, out=torch.float32)
    x = torch.randn(3, 5, 131).bfloat16()
    (out,) = fd.execute([x])
    assert is_phased(fd) and fd.fec.kernel_runtimes[-1].proposal.params.vector_elems == 4
    assert_close(out, torch.softmax(x.double(), 2), torch.float32)


def test_an_axis_left_of_the_reduced_ones_that_an_input_lacks():
    """The input without the rows' outer axis has a phase of its own."""
    bf16 = DataType.BFloat16
    with FusionDefinition() as fd:
        x, y = fd.define_tensor(shape=[-1, -1, -1], contiguity=True, dtype=bf16), fd.define_tensor(shape=[1, -1, -1], contiguity=[None, True, True], dtype=bf16)
        total = fd.ops.add(x, y)
        fd.add_output(fd.ops.sub(total, fd.ops.max(total, dims=[2], keepdim=True)))
    x, y = torch.randn(3, 5, 137).bfloat16(), torch.randn(1, 5, 137).bfloat16()
    (out,) = fd.execute([x, y])
    assert is_phased(fd)
    assert_close(out, (x.double() + y.double()) - (x.double() + y.double()).amax(2, keepdim=True), torch.bfloat16)


@pytest.mark.parametrize("columns", [17, 46])
def test_a_weight_that_is_repeated_along_the_row_is_read_element_by_element(columns):
    """A vector of the row would leave it at its end."""
    with FusionDefinition() as fd:
        x, weight = matrix(fd, torch.bfloat16, 3), matrix(fd, torch.bfloat16, 1)
        x = fd.ops.mul(fd.ops.cast(x, DataType.Float), fd.ops.broadcast(fd.ops.cast(weight, DataType.Float), [True, True, False]))
        fd.add_output(fd.ops.cast(fd.ops.sub(x, fd.ops.max(x, dims=[1, 2], keepdim=True)), DataType.BFloat16))
    x, weight = torch.randn(4, 9, columns).bfloat16(), torch.randn(columns).bfloat16()
    (out,) = fd.execute([x, weight])
    assert is_phased(fd)
    product = x.double() * weight.double()
    assert_close(out, product - product.amax((1, 2), keepdim=True), torch.bfloat16)


def test_rows_of_several_reduced_axes():
    with FusionDefinition() as fd:
        x = fd.ops.cast(matrix(fd, torch.bfloat16, 4), DataType.Float)
        fd.add_output(fd.ops.cast(fd.ops.sub(x, fd.ops.max(x, dims=[1, 2, 3], keepdim=True)), DataType.BFloat16))
    x = torch.randn(4, 3, 7, 11).bfloat16()
    (out,) = fd.execute([x])
    assert is_phased(fd)
    assert torch.equal(out, x - x.amax((1, 2, 3), keepdim=True))


def strided() -> tuple[FusionDefinition, torch.Tensor]:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[False, True])
        fd.add_output(fd.ops.sub(x, fd.ops.max(x, dims=[1], keepdim=True)))
    return fd, torch.randn(4, 512)[:, :301]


def misaligned() -> tuple[FusionDefinition, torch.Tensor]:
    with FusionDefinition() as fd:
        x = matrix(fd, torch.float32)
        fd.add_output(fd.ops.sub(x, fd.ops.max(x, dims=[1], keepdim=True)))
    return fd, torch.randn(1 + 4 * 301)[1:].view(4, 301)


@pytest.mark.parametrize(("first", "expected"), [(0, True), (1, False), (2, True)])
def test_weights_begin_with_a_word(first, expected):
    """They are read in words of 32 bits, of which the first must not begin in front of them."""
    dtype, columns = torch.bfloat16, 259
    x, y = torch.randn(2, 3, columns).to(dtype)
    weight = torch.randn(columns + 2).to(dtype)[first : first + columns]
    fd = add_rms_norm(dtype)
    outs = fd.execute([x.clone(), y.clone(), weight])
    assert is_phased(fd) == expected
    for out, wanted in zip(outs, add_rms_norm_of(x, y, weight)):
        assert_close(out, wanted, dtype)


def empty() -> tuple[FusionDefinition, torch.Tensor]:
    return misaligned()[0], torch.randn(0, 301)


@pytest.mark.parametrize("case", [strided, misaligned], ids=lambda c: c.__name__)
def test_what_has_no_phase_is_read_as_before(case: Callable):
    fd, x = case()
    (out,) = fd.execute([x])
    assert not is_phased(fd)
    assert torch.equal(out, x - x.amax(1, keepdim=True))


def test_no_rows():
    fd, x = empty()
    (out,) = fd.execute([x])
    assert out.shape == (0, 301)


def test_interior_vectors_are_whole_and_ends_are_one_element_each():
    """No access of the loops over a row is narrow, and nothing asks for single elements there."""
    fd = softmax(torch.bfloat16)
    axes = fd.fusion.inputs()[0].get_logical_domain()
    env = {axis.sym: n for axis, n in zip(axes, (1000, 4097))}
    proposal = compiler.propose(fd.fusion, env, {}, H200)
    program = compiler.compile_program(fd.fusion, proposal, DataType.Int32, name="kernel")
    assert program.text.count("load_global_vector<8,") == program.text.count("store_global_vector<8,") == 1
    assert program.text.count("load_global<") == program.text.count("store_global<") == 1
    assert program.text.count("if (row_end <") == 4  # the load, two sums, the store
    shorter = {axes[0].sym: 1000, axes[1].sym: 15}
    with pytest.raises(WrongAssumption, match="kernel was made for"):
        check_limits(program, shorter, launch_sizes(program, shorter), H200)


@by_dtype
@pytest.mark.parametrize(("rows", "columns"), [(9, 65), (3, 513), (7, 1009), (2, 24593), (1, 70001)])
def test_sums_and_extrema_of_rows(dtype, rows, columns):
    """Also of a row that several blocks share: the first of them has the ends."""
    with FusionDefinition() as fd:
        x = fd.ops.cast(matrix(fd, dtype), DataType.Float)
        fd.add_output(fd.ops.sum(fd.ops.mul(x, x), dims=[1]))
        fd.add_output(fd.ops.max(x, dims=[1]))
    x = torch.randn(rows, columns).to(dtype)
    total, most = fd.execute([x])
    params = fd.fec.kernel_runtimes[-1].proposal.params
    assert params.is_phased and (rows == 2 or (params.grid_split > 1) == (rows == 1))
    torch.testing.assert_close(total.double(), x.double().square().sum(1), rtol=1e-5, atol=0)
    assert torch.equal(most, x.float().amax(1))


# ---- rows that lie further apart than they are long: every one begins with an aligned vector, and has a tail
def is_tailed(fd: FusionDefinition) -> bool:
    params = fd.fec.kernel_runtimes[-1].proposal.params
    return params.is_phased and params.is_tailed


def apart(rows: int, columns: int, stride: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows in steps of `stride`; what lies between them is no number."""
    memory = torch.full((rows, stride), float("nan"), dtype=dtype)
    memory[:, :columns] = torch.randn(rows, columns)
    return memory[:, :columns]


def rows_apart(fd: FusionDefinition, dtype: torch.dtype):
    return fd.define_tensor(shape=[-1, -1], contiguity=[False, True], dtype=TYPES[dtype])


def squares_and_extrema(dtype: torch.dtype) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.ops.cast(rows_apart(fd, dtype), DataType.Float)
        weight = fd.ops.cast(matrix(fd, dtype, 1), DataType.Float)
        fd.add_output(fd.ops.sum(fd.ops.mul(fd.ops.mul(x, x), weight), dims=[1]))
        fd.add_output(fd.ops.max(x, dims=[1]))
    return fd


@by_dtype
def test_rows_apart_are_read_in_vectors_up_to_their_tail(dtype):
    """Widths of few and of many vectors, and strides that a vector does not divide."""
    fd = squares_and_extrema(dtype)
    elems = 16 // dtype.itemsize
    for rows, columns in ((9, 8 * elems + 1), (7, 501), (3, 4099), (2, 24593), (1, 70001)):
        for stride in (-(-columns // elems) * elems, -(-columns // elems) * elems + elems, columns + 2 - columns % 2):
            x, weight = apart(rows, columns, stride, dtype), torch.rand(columns).to(dtype)
            total, most = fd.execute([x, weight.clone()])
            params = fd.fec.kernel_runtimes[-1].proposal.params
            assert rows == 1 or is_tailed(fd) and params.vector_elems == min(elems, stride & -stride), (columns, stride)
            torch.testing.assert_close(total.double(), (x.double().square() * weight.double()).sum(1), rtol=1e-5, atol=0)
            assert torch.equal(most, x.float().amax(1))


@by_dtype
@pytest.mark.parametrize(("rows", "columns", "more"), [(9, 67, 5), (5, 1009, 7), (3, 4097, 7), (2, 40009, 7)])
def test_rows_apart_that_are_kept(dtype, rows, columns, more):
    """How far the elements of a row are from their mean: a second pass, and no result that is a row."""
    with FusionDefinition() as fd:
        x = fd.ops.cast(rows_apart(fd, dtype), DataType.Float)
        mean = fd.ops.mean(x, dims=[-1], keepdim=True)
        fd.add_output(fd.ops.sum(fd.ops.abs(fd.ops.sub(x, mean)), dims=[-1]))
    x = apart(rows, columns, columns + more, dtype)
    (out,) = fd.execute([x])
    assert is_tailed(fd) and isinstance(fd.fec.kernel_runtimes[-1].proposal.params, PersistentParams)
    wide = x.double()
    torch.testing.assert_close(out.double(), (wide - wide.mean(1, keepdim=True)).abs().sum(1), rtol=1e-5, atol=0)


def test_rows_apart_that_are_written_over():
    """What lies between rows stays as it is."""
    with FusionDefinition() as fd:
        source = rows_apart(fd, torch.bfloat16)
        x = fd.ops.cast(source, DataType.Float)
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims=[-1], keepdim=True)))
        fd.add_output(fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, dims=[-1], keepdim=True)), DataType.BFloat16), source)
    x = apart(5, 1009, 1016, torch.bfloat16)
    expected = torch.softmax(x.double(), 1)
    fd.execute([x])
    assert_close(x, expected, torch.bfloat16)
    assert torch.as_strided(x, (4, 7), (1016, 1), 1009).isnan().all()


@pytest.mark.parametrize(("first", "length", "tailed"), [(0, 4099, True), (8, 4091, True), (3, 4096, False), (8, 1001, True), (0, 61, False)])
def test_a_slice_of_wider_rows_has_vectors_of_these(first, length, tailed):
    """The kernel reads the wider rows themselves: where the slice begins decides, not how long it is. Rows of few vectors are read as before."""
    with FusionDefinition() as fd:
        wide = matrix(fd, torch.bfloat16)
        part = fd.ops.cast(fd.ops.slice(wide, start_indices=[0, first], end_indices=[7, first + length]), DataType.Float)
        fd.add_output(fd.ops.sum(fd.ops.exp(part), dims=[1]))
    x = torch.randn(7, 4104).bfloat16()
    x[:, :first], x[:, first + length :] = float("inf"), float("inf")
    (out,) = fd.execute([x])
    assert is_tailed(fd) == tailed
    torch.testing.assert_close(out.double(), x[:, first : first + length].double().exp().sum(1), rtol=1e-5, atol=0)


def test_rows_apart_and_rows_without_gaps_have_no_common_vectors():
    with FusionDefinition() as fd:
        x, y = rows_apart(fd, torch.bfloat16), matrix(fd, torch.bfloat16)
        fd.add_output(fd.ops.sum(fd.ops.cast(fd.ops.mul(x, y), DataType.Float), dims=[1]))
    x, y = apart(5, 1001, 1008, torch.bfloat16), torch.randn(5, 1001).bfloat16()
    (out,) = fd.execute([x, y])
    assert not fd.fec.kernel_runtimes[-1].proposal.params.is_phased
    torch.testing.assert_close(out.double(), (x.double() * y.double()).sum(1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("shape", [(33, 65), (6, 1, 66), (2, 5, 3, 7), (7, 257)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_constants_reach_the_ends_of_rows(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """A constant has no index and no predicate, and its rows have ends like any other."""
    x = torch.randn(shape).to(dtype)
    with FusionDefinition() as fd:
        source = matrix(fd, dtype, len(shape))
        constant = fd.ops.full(list(shape), 0.75, TYPES[dtype])
        fd.add_output(constant)
        fd.add_output(fd.ops.where(fd.ops.gt(source, 0.0), constant, source))
    filled, chosen = fd.execute([x])
    assert torch.equal(filled, torch.full(shape, 0.75, dtype=dtype)) and torch.equal(chosen, torch.where(x > 0, 0.75, x))
    with FusionDefinition() as alone:
        alone.add_output(alone.ops.full(list(shape), 0.75, TYPES[dtype]))
    assert torch.equal(alone.execute([])[0], filled)
