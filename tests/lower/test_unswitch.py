"""Unswitched nests: which bounds one test may stand for, and kernels whose sizes take the branch without bounds, the one with them, or both."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from by_hand import defined, named, one_branch, run
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.arch import arch_by_name
from weft.compiler import compile_program, program_of_scheduled, propose
from weft.emulator.report import KernelFault
from weft.expr import Sym, add, ceildiv, const, floordiv, less, minimum, mod, mul, sub, var
from weft.ir.enums import MemoryType, ParallelType
from weft.ir.fusion import Fusion
from weft.lower import bounds, unswitch
from weft.lower.bounds import Ranges, raised
from weft.options import options
from weft.schedule.caching import cache_and_fork_outputs, cache_inputs
from weft.schedule.inline import inline_at, inline_most
from weft.schedule.primitives import merge, reorder, set_memory_type, split
from weft.schedule.propagate import parallelize_like, transform_like
from weft.schedulers import reduction
from weft.schedulers.reduction_heuristic import ReductionParams

P = ParallelType
N, M = var("T0.size[0]", lower=1), var("T0.size[1]", lower=1)
INNER, OUTER = var("i1", extent=const(4)), var("i2", extent=N)
BLOCK, THREAD = var("blockIdx.x", extent=N), var("threadIdx.x", extent=const(30))
RANGES = Ranges(frozenset([OUTER]), {INNER: const(3)}, {"threadIdx.x": const(31)})


# ---------------------------------------------------------------- what a test may stand for
@pytest.mark.parametrize(
    "position, expected",
    [
        (INNER, const(3)),
        (THREAD, const(31)),  # of the block, which is larger than the axis
        (mul(BLOCK, 128) + mul(INNER, 32) + THREAD, mul(BLOCK, 128) + 127),
        (mul(OUTER, 4) + INNER, mul(OUTER, 4) + 3),
        (mul(INNER, M) + THREAD, mul(M, 3) + 31),
        (floordiv(mul(INNER, M) + THREAD, 7), floordiv(mul(M, 3) + 31, 7)),
        (ceildiv(mul(INNER, M), 7), ceildiv(mul(M, 3), 7)),
        (minimum(mul(INNER, M), N), minimum(mul(M, 3), N)),
        (mod(BLOCK, 7), mod(BLOCK, 7)),  # one value in the block
        (mod(mul(INNER, M) + THREAD, 7), None),
        (mul(mod(mul(INNER, M), N), 4) + floordiv(mul(INNER, M), N), None),
        (sub(BLOCK, INNER), None),
        (mul(sub(BLOCK, 9), INNER), None),
        (floordiv(N, add(INNER, 1)), None),
        (var("row_end"), None),
        (add(var("skipped", extent=const(8)), INNER), const(10)),
    ],
    ids=str,
)
def test_an_index_is_raised_only_where_it_does_not_fall(position: Sym, expected: Sym | None) -> None:
    assert raised(position, RANGES) is expected


def test_where_a_condition_holds_an_index_ends_before_it() -> None:
    """A ring loads two iterations ahead, where there are so many: never further than the last iteration."""
    inside = Ranges(frozenset(), {OUTER: sub(N, 1)}, {}).where(less(add(OUTER, 2), N))
    assert raised(mul(add(OUTER, 2), 128), inside) is mul(sub(N, 1), 128)


def test_threads_that_a_guard_keeps_out_do_not_count() -> None:
    raw = var("threadIdx.x", extent=const(32))
    guarded = RANGES.guarded(less(raw, N))
    assert raised(mul(INNER, N) + THREAD, guarded) is add(mul(N, 3), sub(N, 1))


# ---------------------------------------------------------------- schedules by hand
def add_two(fd: FusionDefinition, contiguous: bool = True) -> None:
    x, y = (fd.define_tensor([-1], contiguity=contiguous) for _ in range(2))
    fd.add_output(fd.ops.add(x, y))


def line(*, vector: int = 1, times: int = 1, contiguous: bool = True) -> tuple[Fusion, Fusion]:
    """[blocks, 3, unswitch: `times`, unroll: 2, 32 threads, vector]: chunks of 64 * times vectors."""
    fusion = defined(lambda fd: add_two(fd, contiguous))
    caches = [cache for _, cache in cache_inputs(fusion)]
    ((_, out),) = cache_and_fork_outputs(fusion)
    for factor in (vector, 32, 2, times, 3):
        split(out, 0, factor)
    for position, kind in {0: P.grid_x, 2: P.unswitch, 3: P.unroll, 4: P.block_x}.items():
        out.axis(position).parallelize(kind)
    transform_like(out)
    parallelize_like(out)
    for tensor in (out, *caches) if vector > 1 else ():
        tensor.axis(5).parallelize(P.vectorize)
    inline_at(out, 3, best_effort=True)
    inline_most([t for t in fusion.tensors() if t not in caches])
    return fusion, defined(lambda fd: add_two(fd, contiguous))


def run_sizes(scheduled: tuple[Fusion, Fusion], inputs: list[list[torch.Tensor]]) -> str:
    text = ""
    with poisoned_outputs():
        for given in inputs:
            text = run(scheduled[0], given, scheduled[1])
    return text


def pairs(*sizes: int) -> list[list[torch.Tensor]]:
    return [[torch.randn(n, generator=torch.Generator().manual_seed(n + k)) for k in range(2)] for n in sizes]


def branches(text: str) -> tuple[str, str]:
    """The two branches of the only unswitched nest of a kernel, without the test, or the bodies of the two loops that it became."""
    loops = re.search(r"\n( *)for \([^\n]*, whole\n((?:\1 [^\n]*\n)*)\1\}\n\1#pragma[^\n]*\n\1for \([^\n]*\n((?:\1 [^\n]*\n)*)\1\}\n", text)
    if loops:
        return loops[2], loops[3]
    match = re.search(r"\n( *)if \([^\n]*\) \{\n((?:\1 [^\n]*\n)*)\1\}\n\1else \{\n((?:\1 [^\n]*\n)*)\1\}\n", text)
    assert match, text
    return match[2], match[3]


@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("vector", [1, 4])
def test_a_line(vector: int, times: int) -> None:
    chunk = 64 * times * vector
    odd = () if vector > 1 else (1, 3, chunk - 1, 3 * chunk + 1, 7 * chunk - 31)
    text = run_sizes(line(vector=vector, times=times), pairs(0, 4, chunk - 4, chunk, chunk + 4, 3 * chunk, 7 * chunk - 4, *odd))
    fast, slow = branches(text)
    assert "if (" not in fast and slow.count("if (") == 3
    with one_branch("fast"):
        run_sizes(line(vector=vector, times=times), pairs(0, 3 * chunk, 6 * chunk))
    with one_branch("slow"):
        run_sizes(line(vector=vector, times=times), pairs(0, 4, chunk - 4))


def test_strided_and_misaligned_inputs() -> None:
    xs = [torch.randn(1001, generator=torch.Generator().manual_seed(n)) for n in range(2)]
    run_sizes(line(contiguous=False), [[x[::3] for x in xs], [x[5:] for x in xs], [xs[0][1:900:2], xs[1][3:453]], [x[::5][:192] for x in xs]])
    run_sizes(line(), [[x[1:] for x in xs], [x[3:195] for x in xs]])


def scaled(fd: FusionDefinition) -> None:
    x, bias = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1], contiguity=True)
    fd.add_output(fd.ops.mul(fd.ops.add(x, bias), 2.0))


def plane() -> tuple[Fusion, Fusion]:
    """[rows by 4: BIDy, columns by 16: serial, unswitch, 4 rows: unroll, 16 threads]."""
    fusion = defined(scaled)
    caches = [cache for _, cache in cache_inputs(fusion)]
    ((_, out),) = cache_and_fork_outputs(fusion)
    split(out, 1, 16)
    split(out, 0, 4)
    split(out, 1, 1, False)  # [rows, 1, 4, columns, 16]
    reorder(out, {1: 2, 2: 3, 3: 1})
    for position, kind in {0: P.grid_y, 2: P.unswitch, 3: P.unroll, 4: P.block_x}.items():
        out.axis(position).parallelize(kind)
    transform_like(out)
    parallelize_like(out)
    inline_at(out, 3, best_effort=True)
    inline_most([t for t in fusion.tensors() if t not in caches])
    return fusion, defined(scaled)


def planes(*sizes: tuple[int, int]) -> list[list[torch.Tensor]]:
    return [[torch.randn(size), torch.randn(size[1])] for size in sizes]


def test_a_plane() -> None:
    text = run_sizes(plane(), planes((1, 1), (1, 16), (4, 1), (4, 16), (5, 16), (8, 48), (9, 47), (13, 33), (0, 5), (5, 0), (1, 100), (100, 1)))
    assert "if (" not in branches(text)[0]
    with one_branch("fast"):
        run_sizes(plane(), planes((4, 16), (12, 64)))
    with one_branch("slow"):
        run_sizes(plane(), planes((3, 16), (4, 15), (1, 1)))


def transposed_order() -> tuple[Fusion, Fusion]:
    """Elements in the order 0, 4, 8, ..., 1, 5, 9, ...: the position falls within the unswitched loop where a run ends."""
    fusion = defined(add_two)
    out = fusion.outputs()[0]
    split(out, 0, 4)
    reorder(out, {0: 1, 1: 0})
    merge(out, 0, 1)
    split(out, 0, 5)  # [.., 5]
    out.axis(0).parallelize(P.grid_x)
    out.axis(1).parallelize(P.unswitch)
    return fusion, defined(add_two)


def test_a_bound_of_an_index_that_falls_is_left_inside() -> None:
    sizes = pairs(1, 2, 9, 10, 11, 21, 22, 23)
    fast, slow = branches(run_sizes(transposed_order(), sizes))
    (inside,) = re.findall(r"if \((.*)\) \{", fast)
    assert "weft::remainder" in inside and "&&" not in inside and inside in slow
    with patch.object(bounds, "MONOTONE", (*bounds.MONOTONE, "mod")), pytest.raises((KernelFault, AssertionError)):
        run_sizes(transposed_order(), sizes)


def test_padded_threads_are_kept_out_in_both_branches() -> None:
    """Blocks have the threads of the widest tensor, whole warps: those beyond the row stay out without turning the test false."""

    def define(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.neg(fd.define_tensor([-1, -1], contiguity=True)))

    def schedule() -> tuple[Fusion, Fusion]:
        fusion = defined(define)
        out = fusion.outputs()[0]
        split(out, 1, 3, False)  # [rows, 3, threads]
        for position, kind in {0: P.grid_x, 1: P.unswitch, 2: P.block_x}.items():
            out.axis(position).parallelize(kind)
        out.axis(2).pad_to_multiple_of_warp()
        return fusion, defined(define)

    text = run_sizes(schedule(), [[torch.randn(4, n)] for n in (1, 2, 3, 95, 96, 97, 99, 300)])
    fast, slow = branches(text)
    assert re.fullmatch(r"\(int\)threadIdx.x < p\d", *re.findall(r"if \((.*)\) \{", fast)) and "&&" in slow
    with one_branch("fast"):
        run_sizes(schedule(), [[torch.randn(4, n)] for n in (3, 96, 99, 300)])


def test_a_nest_without_bounds_is_written_once() -> None:
    fusion = defined(lambda fd: fd.add_output(fd.ops.neg(fd.define_tensor([8, 64], contiguity=True))))
    out = fusion.outputs()[0]
    split(out, 1, 16)
    out.axis(0).parallelize(P.unswitch)
    out.axis(2).parallelize(P.block_x)
    text = program_of_scheduled(fusion, DataType.Int32, name="kernel").text
    assert "if (" not in text and text.count("store_global") == 1


def test_the_branch_with_bounds_is_the_kernel_without_unswitching() -> None:
    fusion, _ = line(vector=4)
    with patch.object(unswitch, "_both", lambda loop, *_: unswitch._plain([loop])):
        plain = program_of_scheduled(fusion, DataType.Int32, name="kernel").text
    _, slow = branches(program_of_scheduled(fusion, DataType.Int32, name="kernel").text)
    renumbered = [re.sub(r"\bp\d", "p", t.replace(" ", "")) for t in (plain, slow)]
    assert renumbered[1] in renumbered[0]


def test_threads_meet_in_both_branches() -> None:
    """A transposed copy through shared memory, with a barrier in each branch; the test is the same for all threads."""

    def define(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.neg(fd.ops.neg(fd.define_tensor([-1, -1], contiguity=True))))

    fusion = defined(define)
    middle, out = named(fusion, 1), fusion.outputs()[0]
    for tensor in (middle, out):
        split(tensor, 1, 8)
        split(tensor, 0, 8)  # [rows, 8, columns, 8]
        reorder(tensor, {1: 2, 2: 1})
        split(tensor, 2, 1, False)  # [rows, columns, unswitch, 8, 8]
        tensor.axis(0).parallelize(P.grid_x)
        tensor.axis(2).parallelize(P.unswitch)
    middle.axis(4).parallelize(P.block_x)
    out.axis(3).parallelize(P.block_x)
    set_memory_type(middle, MemoryType.shared)
    inline_at(out, 3, best_effort=True)
    text = run_sizes((fusion, defined(define)), [[torch.randn(size)] for size in ((8, 8), (16, 24), (17, 23), (1, 1), (7, 64), (64, 7))])
    fast, slow = branches(text)
    assert fast.count("block_sync") == slow.count("block_sync") == 1 and "if (" not in fast and "if (" in slow


@pytest.mark.parametrize("bind", [P.block_x, P.grid_y])
def test_reductions_across_threads_and_blocks_in_both_branches(bind: ParallelType) -> None:
    """[rows by 3: unswitch 1, 3 rows, (16 threads | blocks) of the columns]: each row's total is folded in either branch."""

    def define(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.sum(fd.define_tensor([-1, -1], contiguity=True), [1]))

    fusion = defined(define)
    cache_inputs(fusion)
    ((total, out),) = cache_and_fork_outputs(fusion)
    split(total, 1, 16)  # [rows, columns, 16]
    partial = total.rfactor([1])
    for tensor in (total, partial, out, named(fusion, 2)):
        split(tensor, 0, 3)
        split(tensor, 1, 1, False)  # [rows, 1, 3, ...]
        tensor.axis(0).parallelize(P.grid_x)
        tensor.axis(1).parallelize(P.unswitch)
    transform_like(partial, [t for t in fusion.tensors() if t.definition() is not None and len(t.get_loop_domain()) < 5 and t not in (total, out)])
    for tensor in (total, partial):
        tensor.axis(-1).parallelize(bind)
    parallelize_like(partial)
    inline_most(fusion=fusion)
    text = run_sizes((fusion, defined(define)), [[torch.randn(size)] for size in ((3, 16), (6, 160), (7, 33), (1, 1), (2, 5), (1, 400), (40, 1))])
    fast, slow = branches(text)
    fold = "arrive_grid" if bind is P.grid_y else "reduce_"
    assert fold in fast and fold in slow and text.count("bool last_") == (bind is P.grid_y)


# ---------------------------------------------------------------- reductions by the scheduler
@contextmanager
def given(**changed: object) -> Iterator[None]:
    """Let reductions have the params that the heuristic gives, with some of them changed."""
    choose = reduction.choose_with_trace

    def choose_given(*args: object) -> tuple[ReductionParams, object]:
        params, trace = choose(*args)  # type: ignore[arg-type]
        return replace(params, **changed), trace  # type: ignore[arg-type]

    with patch.object(reduction, "choose_with_trace", choose_given):
        yield


def column_sum(fd: FusionDefinition, dtype: DataType = DataType.BFloat16) -> None:
    wide = fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=dtype), dtype=DataType.Float)
    fd.add_output(fd.ops.cast(fd.ops.sum(wide, [0]), dtype=dtype))


def row_sum(fd: FusionDefinition) -> None:
    wide = fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16), dtype=DataType.Float)
    fd.add_output(fd.ops.sum(wide, [1]))


def program_text(define: Callable[[FusionDefinition], None], rows: int, cols: int) -> str:
    with FusionDefinition() as fd:
        define(fd)
    fusion: Fusion = fd.fusion  # type: ignore[assignment]
    sizes = {axis.logical_extent: size for axis, size in zip(fusion.inputs()[0].get_logical_domain(), (rows, cols))}  # type: ignore[attr-defined]
    return compile_program(fusion, propose(fusion, sizes, {}, arch_by_name("H200")), DataType.Int32, name="kernel").text


def check_sums(define: Callable[[FusionDefinition], None], dim: int, sizes: list[tuple[int, int]], offset: int = 0) -> None:
    with FusionDefinition() as fd:
        define(fd)
    for rows, cols in sizes:
        base = torch.randn(rows * cols + offset, generator=torch.Generator().manual_seed(rows + cols)).bfloat16()
        x = base[offset:].view(rows, cols)
        with options(check="races"), poisoned_outputs():
            (total,) = fd.execute([x])
        eps = torch.finfo(total.dtype).eps
        torch.testing.assert_close(total.double(), x.double().sum(dim), rtol=2 * eps + 1e-5, atol=1e-4 + 2 * eps)


def test_the_column_sum_loads_without_bounds() -> None:
    """Several loads of 16 bytes, then the sums: nothing is asked in the iterations that are whole."""
    fast, slow = branches(program_text(column_sum, 8192, 8192))
    assert "if (" not in fast and "?" not in fast and fast.count("load_global_vector<8") == 1 and "i11 < 4" in fast and fast.index("load_global") < fast.index("T6[i10] +")
    assert slow.count("if (") == 2
    with given(unswitch=False):
        assert ", whole" not in program_text(column_sum, 8192, 8192)


def test_the_heuristic_unswitches_loops_over_unrolled_loads() -> None:
    for define, rows, cols, wanted in ((column_sum, 8192, 8192, True), (row_sum, 64, 1 << 20, True), (row_sum, 8192, 4096, False), (column_sum, 4, 8192, False)):
        assert (", whole" in program_text(define, rows, cols)) is wanted, (define, rows, cols)


BLOCK_OF_COLUMNS = dict(kind="outer", unroll=4, bdimx=4, bdimy=8, bdimz=1, is_warp_only=False)


@pytest.mark.parametrize("vector, grid_split", [(8, 1), (8, 3), (1, 1), (1, 2)])
def test_columns(vector: int, grid_split: int) -> None:
    chunk = 4 * vector
    odd = [(7, 13), (97, 2), (1, 5), (65, 3 * chunk + 1)] if vector == 1 else []
    with given(**BLOCK_OF_COLUMNS, vector_elems=vector, grid_split=grid_split, unswitch=True):
        sizes = [(32, chunk), (32 * 3 * grid_split, 2 * chunk), (1, chunk), (31, 2 * chunk), (100, 3 * chunk), (33, chunk + vector), (200, max(2, vector)), *odd]
        check_sums(column_sum, 0, sizes)
        check_sums(column_sum, 0, [(0, chunk), (5, 0)])
        if vector == 1:
            check_sums(column_sum, 0, [(70, 9), (64, 8)], offset=1)


@pytest.mark.parametrize("vector, bdimy, grid_split", [(8, 1, 1), (8, 4, 1), (8, 1, 3), (1, 2, 1), (1, 1, 2)])
def test_rows(vector: int, bdimy: int, grid_split: int) -> None:
    chunk = 4 * 32 * vector
    odd = [(3, 3 * chunk + 17), (5, 1), (1, 7)] if vector == 1 else []
    block = dict(kind="inner", vector_elems=vector, unroll=4, bdimx=32, bdimy=bdimy, bdimz=1, is_warp_only=True, is_phased=False)
    with given(**block, grid_split=grid_split, unswitch=True):
        check_sums(row_sum, 1, [(bdimy, chunk), (2 * bdimy, 3 * chunk * grid_split), (1, vector), (5, chunk - vector), (7, 2 * chunk + vector), (9, 8 * chunk), *odd])
        check_sums(row_sum, 1, [(0, chunk), (5, 0)])
        if vector == 1:
            check_sums(row_sum, 1, [(3, 333), (2, 2 * chunk)], offset=1)


def test_rows_that_begin_anywhere() -> None:
    """Vectors are aligned although rows are not: how many elements a row skips differs between the threads of a block."""
    with given(unswitch=True, kind="inner", vector_elems=8, unroll=4, bdimx=32, bdimy=2, bdimz=1, grid_split=1, is_phased=True):
        check_sums(row_sum, 1, [(4, 3073), (3, 5001), (2, 1023), (5, 2047), (1, 4099)])
