# ruff: noqa: E501  (a mistake is one line of a table)
"""A library of planted mistakes: each is a change of a correct kernel's text that the emulator must report, with the right line.

Owns the table that `weft check --planted` prints. The kernels that lowering generates come from `kernels`, the pipeline is `examples/rmsnorm.cu`.
A change keeps the number of lines, so that lines mean the same in both texts. Read first: `Mistake`, `run`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from weft.check.explore import SEEDS, Exploration, Found, Order, explore
from weft.check.handwritten import load
from weft.check.captured_launches import captured
from weft.check.overlap import behind_itself, explore_pair
from weft.device.library import translation_unit
from weft.emulator import EmulatedKernel
from weft.emulator.overlapped import KernelCall
from weft.emulator.source_map import SourceMap, noted, with_checked_scalars, with_shared_tensors
from weft.errors import InternalError

EXAMPLES = Path(__file__).resolve().parent / "examples"
PIPELINE = "rmsnorm pipeline"


class NothingToChange(InternalError):
    code = "W441"
    what = "planted mistake {claim!r}: the text of {kernel} has {count} places like {old!r}, not {wanted}"
    fix = "adapt the pattern in weft/check/planted.py to the text that lowering writes now"


@dataclass(frozen=True)
class Mistake:
    """One planted mistake.

    kernel: a name of `kernels.KERNELS`, or PIPELINE. old: a regular expression, found once (`nth` of `of` places otherwise); new: its replacement.
    kinds: the kinds of findings that name it. line: a regular expression for the text of a line that the finding must name.
    in_library: the change is in the part of the unit that the device library gives. geometry: launch sizes that the mistake changes.
    behind: launched behind the kernel without the mistake, before that has ended: "reads" its result, "overwrites" its input, or "shares" its scratch memory only.
    """

    kernel: str
    claim: str
    old: str
    new: str
    kinds: str
    line: str
    nth: int = 0
    of: int = 1
    in_library: bool = False
    geometry: dict[str, Any] = field(default_factory=dict)
    behind: str = ""


def generated(kernel: str, claim: str, old: str, new: str, kinds: str, line: str, **more: Any) -> Mistake:
    """A mistake in the text that lowering writes."""
    return Mistake(kernel, claim, old, new, kinds, line, **more)


def library(kernel: str, claim: str, old: str, new: str, kinds: str, line: str, **more: Any) -> Mistake:
    """A mistake in a part of the device library, for the kernel that calls it."""
    return Mistake(kernel, claim, old, new, kinds, line, in_library=True, **more)


VECTOR_LOAD, VECTOR_STORE = r"load_global_vector", r"store_global_vector"
GUARD = r"if \(\(\(\(int\)blockIdx\.x \* 128\) \+ \(int\)threadIdx\.x\) < p0\)"

GENERATED = (
    # ---- predicates, addresses
    generated("pointwise", "off-by-one predicate of a load", GUARD, "if ((((int)blockIdx.x * 128) + (int)threadIdx.x) <= p0)", "out-of-bounds", VECTOR_LOAD),
    generated("pointwise", "predicate dropped", GUARD, "if (true)", "out-of-bounds", VECTOR_LOAD),
    generated("pointwise", "predicate one too strict: elements never written", GUARD, "if ((((int)blockIdx.x * 128) + (int)threadIdx.x) < p0 - 1)", "output-not-written", VECTOR_STORE),
    generated("pointwise", "vector not aligned", r"(T0 \+ \(\(int\)blockIdx\.x \* 512\) \+) \(\(int\)threadIdx\.x \* 4\)", r"\1 ((int)threadIdx.x * 4) + 1", "misaligned", VECTOR_LOAD),
    generated("pointwise", "wrong stride between blocks", r"(T4 \+ \(\(int\)blockIdx\.x \*) 512", r"\1 256", "data-race", VECTOR_STORE),
    generated("pointwise", "broadcast axis indexed as if it were whole", r"\(T1 \+ \(\(\(int\)threadIdx\.x \* 4\) \+ (i\d+)\) % 64\)", r"(T1 + (((int)threadIdx.x * 4) + \1))", "out-of-bounds", r"load_global<.*T1 \+"),
    generated("pointwise", "result stored over an input", r"(store_global_vector<4, weft::Cache::unspecified>\()T4", r"\1const_cast<float*>(T0)", "write-to-read-only", VECTOR_STORE),
    generated("softmax_registers", "off-by-one predicate of a store", r"(\(int\)threadIdx\.x\) <) p1(?=\) \|\| false|\)+ \{\n(?:(?!\n    \}).)*?store_global)", r"\1= p1", "data-race|out-of-bounds", VECTOR_STORE),
    generated("row_sums", "loop bound one too small: outputs never written", r"(for \(int i\d+ = 0; i\d+ <) 4;", r"\1 3;", "output-not-written", "store_global"),
    generated("row_sums", "index in a type too narrow for it", r"T0 \+ \(\(int\)blockIdx\.x \* p3\)", "T0 + (signed char)((int)blockIdx.x * p3)", "out-of-bounds", r"load_global"),
    # ---- registers
    generated("softmax_registers", "load loop one short: register elements never written", r"(for \(int i\d+ = 0; i\d+ <) 4(; \+\+i\d+\) \{[^\n]*\n[^\n]*T10;)", r"\1 3\2", "uninitialised-register", r"weft::maximum\("),
    generated("softmax_registers", "accumulator never initialised", r"float (T\d+) = -weft::infinity<float>\(\);", r"float \1;", "uninitialised-register", r"weft::maximum\("),
    generated("row_sums", "sum starts from nothing", r"float (T\d+) = 0\.f;", r"float \1;", "uninitialised-register", r"T4 = \(T4 \+ T2\)|value\[0\] ="),
    generated("row_sums", "value used outside its predicate", r"(\n      )if \([^\n]*\n(        T2 =[^\n]*\n)        (T4 = [^\n]*\n)      \}", r"\1{ if ((i4 * 128) + (int)threadIdx.x < p2 && ((int)blockIdx.x * 4) + i2 < p1)\n\2        \3      }", "uninitialised-register", r"T4 = "),
    # ---- reductions within a block
    library("softmax_registers", "barrier dropped in a block reduction", r"block_sync\(\);(\n#pragma unroll\n[^\n]*\n    T value = lane < warps \?)", r";\1", "data-race|uninitialised-read", "weft::reduce_rows<weft::Max"),
    generated("softmax_registers", "workspace shared by two reductions", r"shared \+ \w\w+\)", "shared + 0)", "data-race", "weft::reduce_rows<weft::Sum"),
    generated("row_sums", "trailing barrier dropped in a loop", r"reduce_rows<weft::Sum, 1, true, true>", "reduce_rows<weft::Sum, 1, false, true>", "data-race", "weft::reduce_rows<weft::Sum"),
    library("softmax_registers", "no identity for lanes beyond the last warp's result", r"lane < warps \? (load_shared\(workspace \+ \(first \+ lane\) \* N \+ n\)) : identity", r"\1", "uninitialised-read|out-of-bounds|data-race", "weft::reduce_rows<weft::Max"),
    generated("softmax_registers", "collective under divergence", r"(\n    )(weft::reduce_rows<weft::Max)", r"\1if ((int)threadIdx.x < p0) \2", "deadlock|divergent-collective|exited-lanes-in-mask", "weft::reduce_rows"),
    generated("softmax_registers", "shuffle in a partial warp: the block is not padded", "$^", "", "exited-lanes-in-mask", "weft::reduce_rows<weft::Max", geometry={"block": (94, 1, 1)}),
    library("column_sum", "barrier dropped within a tree", r"(store_shared\(result \+ column, part\);\n    )block_sync\(\);", r"\1;", "data-race|uninitialised-read", "weft::reduce_tree"),
generated("row_sums", "redundant writers: all threads store the sum", r" && \(\(int\)threadIdx\.x == 0\)\)", ")", "data-race", "store_global"),
    # ---- reductions across blocks
    library("column_sum", "fence dropped before the arrival", r"thread_fence\(\);(\n  block_sync\(\);\n  if \(linear_thread)", r";\1", "data-race", "weft::fold_partials|weft::arrive_grid"),
    library("column_sum", "fence dropped after the arrival", r"thread_fence\(\);(\n  block_sync\(\);\n  return last)", r";\1", "data-race", "weft::fold_partials|weft::arrive_grid"),
    library("column_sum", "semaphore not reset", r"if \(is_last\) atomic_add[^;]*;", ";", "work-memory-not-zero", "weft::arrive_grid"),
    library("column_sum", "blocks share one slot for their partials", r"\* ranks \+ rank\) \* kept_threads \+ kept\) \* N;(\n#pragma unroll\n[^\n]*store_partial)", r"* ranks) * kept_threads + kept) * N;\1", "data-race|uninitialised-read", "weft::arrive_grid|weft::fold_partials"),
    library("column_sum", "last block taken to be the last but one", r"static_cast<int>\(ranks\) - 1;", "static_cast<int>(ranks) - 2;", "data-race|uninitialised-read|work-memory-not-zero", "weft::fold_partials|weft::arrive_grid"),
    generated("column_sum", "last-block flag ignored where the result is stored", r" && last_T\d+\)", ")", "data-race", "store_global"),
    generated("column_sum", "redundant writers: every row of threads stores", r" && \(\(int\)threadIdx\.y == 0\)", "", "data-race", "store_global"),
    library("column_sum", "blocks counted without an atomic", r"const int before = atomic_add\(semaphore \+ segment, 1\);", "const int before = load_global(semaphore + segment); store_global(semaphore + segment, before + 1);", "data-race", "weft::arrive_grid"),
    library("column_sum", "a block that writes no partial", r"if \(writer\) \{", "if (writer && rank) {", "uninitialised-read", "weft::fold_partials"),
    # ---- clusters
    generated("softmax_cluster", "cluster wait dropped at the start", r"weft::cluster_wait\(\);", ";", "bad-cluster-barrier|remote-access-before-start|data-race", "weft::reduce_cluster"),
    generated("softmax_cluster", "two exchanges in one place", r"(weft::Sum, 1>\(value, 0\.f, reinterpret_cast<float\*>\()shared \+ 128\)", r"\1shared + 0)", "data-race|wrong-phase", "weft::reduce_cluster"),
    library("softmax_cluster", "wait dropped in an exchange", r"(if constexpr \(is_sent_async<T>\(\)\)) mbarrier_wait_phase\([^;]*;", r"\1;", "data-race|uninitialised-read|exit-with-pending-load", "weft::reduce_cluster_rows"),
    library("softmax_cluster", "one warp too few announced in an exchange", r"cluster_size\(\) \* values \*", "cluster_size() * (values - 1) *", "phase-completes-early|data-race|uninitialised-read|tx-count", "weft::expect_cluster|weft::reduce_cluster_rows"),
    library("softmax_cluster", "stores of an exchange counted by a barrier that nobody made", r"(send_async\(exchange_values\(exchange\) \+ place, block, value, )reinterpret_cast<unsigned long long\*>\(exchange\)\)", r"\1reinterpret_cast<unsigned long long*>(exchange) + 1)", "mbarrier-not-initialised|deadlock", "weft::reduce_cluster_rows"),
    library("softmax_cluster", "a block leaves while its peers read its results", r"(value = Op::combine\(value, )load_shared\(all \+ entry \* N \+ n\)", r"\1load_shared_remote(all + entry * N + n, (rank + 1) % blocks)", "remote-access-after-exit|data-race", "weft::reduce_cluster_rows"),
    library("column_sum_cluster", "wait dropped in an exchange of columns", r"(if constexpr \(is_sent_async<T>\(\)\)) mbarrier_wait_phase\([^;]*;", r"\1;", "data-race|uninitialised-read|exit-with-pending-load", "weft::reduce_cluster"),
    library("column_sum_cluster", "blocks share one slot for their columns", r"\(rank \* kept_threads \+ kept\) \* N \+ n, folded", "kept * N + n, folded", "data-race|uninitialised-read", "weft::reduce_cluster"),
    # ---- shared memory
    generated("transpose", "barrier dropped between writing and reading a tile", r"weft::block_sync\(\);(  // T3: written)", r";\1", "data-race|uninitialised-read", "load_shared"),
    generated("transpose", "barrier dropped at the end of a loop", r"weft::block_sync\(\);(  // the next iteration)", r";\1", "data-race", "store_shared"),
    generated("transpose", "barrier under divergence", r"(weft::block_sync\(\);  // T3: written)", r"if ((((int)blockIdx.x * 64) + (int)threadIdx.x) < p2) \1", "deadlock|exit-before-barrier|divergent-barrier", "T3: written"),
    generated("transpose", "a thread leaves before a barrier", r"(weft::block_sync\(\);  // T3: written)", r"if (threadIdx.x == 5) return; \1", "exit-before-barrier", "T3: written"),
    generated("transpose", "wrong stride of a tile", r"(T3 \+ \(\(int\)threadIdx\.x \*) 64\)", r"\1 63)", "data-race|uninitialised-read", "_shared"),
    generated("transpose", "shared memory too small", "$^", "", "out-of-bounds", "store_shared", geometry={"shared_bytes": 8192}),
    generated("softmax_shared", "index that runs into the next tensor", r"store_shared\(T10 \+ \((i\d+) \* 128\)", r"store_shared(T10 + (\1 * 256)", "out-of-bounds", r"store_shared\(T10"),
    generated("softmax_shared", "two tensors overlap in shared memory", r"(T13 = reinterpret_cast<float\*>\(shared \+) p3", r"\1 0", "data-race", "store_shared"),
)

EXPECT_0 = r"weft::mbarrier_arrive_expect_tx\(full_0 \+ stage, tile_rows \* ROW_BYTES\);"


def pipeline(claim: str, old: str, new: str, kinds: str, line: str, **more: Any) -> Mistake:
    """A mistake in the warp-specialized kernel."""
    return Mistake(PIPELINE, claim, old, new, kinds, line, **more)


PIPELINES = (
    pipeline("two roles share a full barrier", r"\* full_1 = full_0 \+ STAGES", "* full_1 = full_0", "too-many-arrivals|phase-not-observed|mbarrier-reinitialised", "full_1|full_0"),
    pipeline("wait for an empty slot dropped", r"weft::mbarrier_wait_phase\(empty_1 \+ stage, round - 1\);", ";", "data-race|too-many-arrivals", "bulk_load|full_1"),
    pipeline("parity that never flips", r"wait_phase\(empty_1 \+ stage, round - 1\)", "wait_parity(empty_1 + stage, 1)", "data-race|too-many-arrivals", "bulk_load|full_1"),
    pipeline("first phase off by one", r"wait_phase\(empty_0 \+ stage, round - 1\)", "wait_phase(empty_0 + stage, round)", "deadlock", "wait_phase"),
    pipeline("prefetch too far: a stage ahead of what is free", r"wait_phase\(empty_0 \+ stage, round - 1\)", "wait_phase(empty_0 + stage, round - 2)", "wrong-phase|data-race|too-many-arrivals", "empty_0|full_0|bulk_load"),
    pipeline("wrong byte count: 16 too many announced", EXPECT_0, "weft::mbarrier_arrive_expect_tx(full_0 + stage, tile_rows * ROW_BYTES + 16);", "deadlock", "full_0"),
    pipeline("wrong byte count: one row announced of two", EXPECT_0, "weft::mbarrier_arrive_expect_tx(full_0 + stage, ROW_BYTES);", "phase-completes-early|deadlock", "full_0|bulk_load"),
    pipeline("early release: a slot handed back before it is read", "// before reading", "weft::warp_sync(); if (weft::lane() == 0) { weft::mbarrier_arrive(empty_0 + stage); weft::mbarrier_arrive(empty_1 + stage); }", "data-race|too-many-arrivals", "bulk_load|load_shared_vector|mbarrier_arrive"),
    pipeline("released by lane 0 before its warp has read", r"weft::warp_sync\(0xffffffffu\);   // release", ";", "data-race", "load_shared_vector|bulk_load"),
    pipeline("half of a warp named in a warp sync", r"weft::warp_sync\(0xffffffffu\);   // release", "weft::warp_sync(0xffffu);   // release", "bad-warp-mask", "// release"),
    pipeline("a phase that nobody waits for", r"weft::mbarrier_wait_phase\(full_1 \+ stage, round\);", ";", "phase-not-observed", "full_1"),
    pipeline("an arrival too many expected", r"mbarrier_init\(empty_0 \+ s, 8\)", "mbarrier_init(empty_0 + s, 9)", "deadlock", "empty_0|full_0"),
    pipeline("no barrier after the barriers' init", r"weft::block_sync\(\);   // init", ";", "data-race|mbarrier-not-initialised", "mbarrier_init|mbarrier_wait|arrive"),
    pipeline("missing proxy fence before a bulk store", r"weft::fence_proxy_async_shared\(\);\n", ";\n", "missing-proxy-fence", "bulk_store"),
    pipeline("missing proxy fence between reading a slot and loading over it", r"weft::fence_proxy_async_shared\(\);(   // reads)", r";\1", "missing-proxy-fence", "bulk_load", of=2),
    pipeline("staging buffer reused before its store has read it", r"if \(t == 0\) weft::bulk_wait_read<0>\(\);", ";", "data-race", "bulk_store|store_shared_vector"),
    pipeline("exit before the store has ended", r"if \(t == 0\) weft::bulk_wait<0>\(\);", ";", "exit-with-pending-store", "bulk_store"),
    pipeline("named barrier shared by two groups", r"named_sync\(1 \+ group, 128\);   // reduction", "named_sync(1, 128);   // reduction", "data-race|divergent-barrier|deadlock|too-many-at-barrier|uninitialised-read", "named_sync|load_shared|store_shared"),
    pipeline("barrier dropped in a group's reduction", r"weft::named_sync\(1 \+ group, 128\);   // reduction", ";", "data-race|uninitialised-read", "load_shared|store_shared"),
    pipeline("two counts for one barrier", r"named_sync\(1 \+ group, 128\);   // output", "named_sync(1 + group, 96);   // output", "too-many-at-barrier|barrier-count-mismatch", "// output"),
    pipeline("the tail copies a row too many", r"(weft::bulk_load\(T0_s[^;]*?)tile_rows \* ROW_BYTES, full_0", r"\g<1>2 * ROW_BYTES, full_0", "out-of-bounds", "bulk_load"),
    pipeline("a bulk copy that is not aligned", r"T0 \+ \(long long\)tile", "T0 + 4 + (long long)tile", "misaligned-copy", "bulk_load"),
    pipeline("more registers than the pool holds", r"setmaxnreg_inc<232>", "setmaxnreg_inc<240>", "deadlock", "setmaxnreg"),
    pipeline("setmaxnreg in half of a warpgroup", r"weft::setmaxnreg_dec<40>\(\);", "if (warp < 2) weft::setmaxnreg_dec<40>();", "setmaxnreg-not-uniform|deadlock", "setmaxnreg"),
)

RING = "pipeline_rows"
EMPTY_0 = r"weft::mbarrier_wait_phase\(empty_0 \+ stage_0, \((i\d+) / 3\) \+ -1\);"
EXPECT = r"mbarrier_expect_tx\(full_0 \+ stage_0, (p\d+)\);"
GENERATED_PIPELINES = (
    generated(RING, "two roles share a full barrier", r"(full_1 = reinterpret_cast<unsigned long long\*>\(shared \+) p\d+(?=\))", r"\1 ((unsigned char*)full_0 - shared)", "mbarrier-reinitialised|too-many-arrivals", "full_1"),
    generated(RING, "wait for an empty stage dropped", EMPTY_0, ";", "data-race|too-many-arrivals", "bulk_load|full_0"),
    generated(RING, "prefetch too far: a lap ahead of what is free", EMPTY_0, r"weft::mbarrier_wait_phase(empty_0 + stage_0, (\1 / 3) + -2);", "wrong-phase|data-race", "empty_0|bulk_load"),
    generated(RING, "parity that never flips", EMPTY_0, "weft::mbarrier_wait_parity(empty_0 + stage_0, 1);", "data-race|too-many-arrivals", "bulk_load|full_0"),
    generated(RING, "first phase off by one", EMPTY_0, r"weft::mbarrier_wait_phase(empty_0 + stage_0, \1 / 3);", "deadlock", "empty_0"),
    generated(RING, "rings of different lengths on the two sides", r"(const int stage_0 = i\d+ %) 3(;\n\s*weft::mbarrier_wait_phase\(empty_0)", r"\1 2\2", "wrong-phase|data-race|deadlock|too-many-arrivals", "_0"),
    generated(RING, "wrong byte count: 16 too many announced", EXPECT, r"mbarrier_expect_tx(full_0 + stage_0, \1 + 16);", "deadlock|tx-count-out-of-range", "full_0"),
    generated(RING, "bytes not announced before the arrival", "weft::" + EXPECT, ";", "deadlock|phase-completes-early|data-race|uninitialised-read", "full_0|load_shared"),
    generated(RING, "wait for a full stage dropped", r"weft::mbarrier_wait_phase\(full_0 \+ stage_0, i\d+ / 3\);", ";", "data-race|uninitialised-read", "load_shared_vector|bulk_load"),
    generated(RING, "early release: a stage handed back before it is read", r"(weft::mbarrier_wait_phase\(full_0 \+ stage_0, i\d+ / 3\);[^\n]*)((?:\n(?!\s*weft::release)[^\n]*)*\n\s*)weft::release_stage\(empty_0 \+ stage_0\);", r"weft::mbarrier_wait_phase(full_0 + stage_0, i1 / 3); weft::release_stage(empty_0 + stage_0);\2;", "data-race", "load_shared_vector|bulk_load"),
    generated(RING, "the phase before waited for once more", r"weft::mbarrier_wait_phase\(full_0 \+ stage_0, (i\d+) / 3\);", r"weft::mbarrier_wait_phase(full_0 + stage_0, (\1 / 3) - 1);", "data-race|uninitialised-read", "load_shared_vector|bulk_load"),
    generated(RING, "release dropped", r"weft::release_stage\(empty_0 \+ stage_0\);", ";", "deadlock", "empty_0"),
    library(RING, "only lane 0 of a warp hands a stage back", r"(release_stage\(unsigned long long\* barrier\) \{ )mbarrier_arrive", r"\1if (lane() == 0) mbarrier_arrive", "deadlock", "empty_0"),
    generated(RING, "an arrival too many expected", r"mbarrier_init\(empty_0 \+ stage, 256\)", "mbarrier_init(empty_0 + stage, 257)", "deadlock", "empty_0"),
    generated(RING, "no barrier after the barriers' init", r"weft::block_sync\(\);(  // the barriers are initialised)", r";\1", "data-race|mbarrier-not-initialised", "mbarrier"),
    generated(RING, "missing proxy fence before a bulk store", r"weft::fence_proxy_async_shared\(\);\n", ";\n", "missing-proxy-fence", "bulk_store"),
    generated(RING, "missing proxy fence between reading a stage and loading over it", r"weft::fence_proxy_async_shared\(\);(  // after)", r";\1", "missing-proxy-fence", "bulk_load", of=2),
    generated(RING, "named barrier shared by two groups", r"1 \+ \(int\)threadIdx\.y(\);\n\s*T\d+ = value)", r"1\1", "data-race|divergent-barrier|too-many-at-barrier|deadlock|uninitialised-read", "reduce_group"),
    generated(RING, "barrier dropped before a bulk store", r"weft::named_sync\(1 \+ \(int\)threadIdx\.y, 128\);(  // T)", r";\1", "data-race|uninitialised-read|missing-proxy-fence", "bulk_store|store_shared_vector"),
    generated(RING, "staging buffer reused before its store has read it", r"if \(threadIdx\.x == 0\) weft::bulk_wait_read<0>\(\);", ";", "data-race", "bulk_store|store_shared_vector"),
    generated(RING, "exit before the store has ended", r"if \(threadIdx\.x == 0\) weft::bulk_wait<0>\(\);", ";", "exit-with-pending-store", "bulk_store"),
    generated(RING, "more registers than the pool holds", r"setmaxnreg_inc<232>", "setmaxnreg_inc<240>", "deadlock", "setmaxnreg"),
    generated(RING, "fewer registers given back than are taken", r"setmaxnreg_dec<40>", "setmaxnreg_dec<56>", "deadlock", "setmaxnreg"),
    generated(RING, "setmaxnreg in half of a warpgroup", r"weft::setmaxnreg_dec<40>\(\);", "if (threadIdx.x < 64) weft::setmaxnreg_dec<40>();", "setmaxnreg-not-uniform|deadlock", "setmaxnreg"),
    generated(RING, "setmaxnreg in a kernel without launch bounds", r" __launch_bounds__\(384, 1\)", "", "bad-setmaxnreg", "setmaxnreg"),
)

SIDES, SIDES_CLUSTER, SIDES_BEHIND, READ_PARTIAL, MEET = "two_sides", "two_sides_cluster", "two_sides_behind", "load_global_vector<4, weft::Cache::global>", "weft::meet_grid"
TWO_SIDES = (
    generated(SIDES, "partial sums read before the blocks have met", r"weft::meet_grid\(grid_barrier\);", ";", "data-race|uninitialised-read", READ_PARTIAL),
    generated(SIDES, "no barrier of the block before the meeting", r"weft::block_sync\(\);(  // T\d+: written for)", r";\1", "data-race", READ_PARTIAL),
    generated(SIDES, "no barrier of the block after the meeting", r"weft::block_sync\(\);(  // T\d+: written by)", r";\1", "data-race|uninitialised-read", READ_PARTIAL),
    library(SIDES, "blocks counted without an atomic at the meeting", r"if \(atomic_add_acquire_release\(barrier, 1\) != blocks - 1\) \{", "const int seen = load_global_volatile(barrier); store_global_volatile(barrier, seen + 1); if (seen != blocks - 1) {", "data-race|deadlock", MEET + "|" + READ_PARTIAL),
    library(SIDES, "the meeting waits for one block too few", r"while \(load_acquire\(barrier\) != blocks\)", "while (load_acquire(barrier) < blocks - 1)", "data-race|uninitialised-read", READ_PARTIAL),
    library(SIDES, "a meeting that acquires nothing", r"while \(load_acquire(\(barrier\) != blocks\) \{\n    \}\n  \}\n  if \()atomic_add_acquire_release", r"while (load_global_volatile\1atomic_add", "data-race", READ_PARTIAL),
    library(SIDES, "meeting not left as it was found", r"store_global_volatile\(barrier \+ 1, 0\);", ";", "work-memory-not-zero", MEET),
    generated(SIDES, "blocks share one slot for their partial sums", r"(store_global_vector<4, weft::Cache::unspecified>\(T\d+ \+ \()\(\(int\)blockIdx\.x \* \d+\)( \+ \(\(int\)threadIdx\.x \* 8\) \+ \(\(int\)threadIdx\.y \* 64\)\), T12, 0\))", r"\g<1>0\2", "data-race|uninitialised-read", r"store_global_vector<4|load_global_vector<4"),
    generated(SIDES, "a column tile written by every row of threads", r" && \(\(int\)threadIdx\.y == 0\)\)", ")", "data-race", "store_global_vector<4"),
    generated(SIDES, "both iterations in one workspace", r"\+ \(i\d+ % 2\) \* 2, ", "+ 0, ", "data-race", "weft::reduce_rows", of=2),
    generated(SIDES, "a stage refilled while it is read", r"(const int stage_0 =) (i\d+) % 3;(\n\s*weft::fence)", r"\1 (\2 + 1) % 3;\3", "data-race|too-many-arrivals|wrong-phase|deadlock", "bulk_load|full_0", of=2),
    generated(SIDES, "missing proxy fence between reading a stage and loading over it", r"weft::fence_proxy_async_shared\(\);(  // after)", r";\1", "missing-proxy-fence", "bulk_load", nth=1, of=3),
    library(SIDES_CLUSTER, "exchanges not in turn", r"exchange \+= use % 2 \* half;", ";", "data-race|wrong-phase|too-many-arrivals|deadlock", "weft::reduce_cluster_turn", of=2),
    library(SIDES_CLUSTER, "arrival before the other lanes of a warp have read", r"warp_sync\(0xffffffffu\);(\n  if constexpr \(is_sent_async)", r";\1", "data-race|missing-proxy-fence", "weft::reduce_cluster_turn|bulk_load"),
    library(SIDES_CLUSTER, "fewer bytes awaited than are sent", r"mbarrier_arrive_expect_tx\(arrived, blocks \* N \*", "mbarrier_arrive_expect_tx(arrived, (blocks - 1) * N *", "phase-completes-early|data-race|uninitialised-read|tx-count|wrong-phase", "weft::reduce_cluster_turn"),
    library(SIDES_CLUSTER, "a block left out of an exchange", r"if \(lane < blocks\) \{(\n      if constexpr \(sizeof\(T\) == 4)", r"if (lane && lane < blocks) {\1", "deadlock", "mbarrier"),
    generated(SIDES_CLUSTER, "no barrier before exit: a block leaves while others still read and write", r"weft::meet_grid\(grid_barrier\);", ";", "data-race|uninitialised-read|remote-access", "load_global|store_global|cluster"),
    generated(SIDES_CLUSTER, "blocks of a cluster do not wait for each other's start", r"weft::cluster_wait\(\);", ";", "bad-cluster-barrier|remote-access-before-start|data-race|mbarrier-not-initialised", "weft::reduce_cluster|cluster"),
    generated(SIDES_BEHIND, "a stage refilled before the row before has left it", r"weft::block_sync\(\);(  // the stage of the row before has been read)", r";\1", "data-race|missing-proxy-fence", "bulk_load|load_shared"),
    generated(SIDES_BEHIND, "the second pass reads the stage of the row that is in its first", r"(const int stage_0_before =) \((i\d+) \+ -1\) % 3;", r"\1 (\2 + 1) % 3;", "data-race|uninitialised-read|missing-wait", "load_shared|bulk_load"),
    library(SIDES_BEHIND, "results taken before they have come", r"  mbarrier_wait_phase\((reinterpret_cast<unsigned long long\*>\(exchange\), use / 2)\);", "  ;", "data-race|uninitialised-read|exit-with-pending-load", "weft::take_cluster_turn|weft::reduce_cluster_turn|hand_over"),
)

NESTED, PARTS = "nested_rows", r"store_global<.*T10|load_shared|reduce_cluster<"
NESTED_ROWS = (
    generated(NESTED, "every block of a cluster stores the sums of parts", r" && \(\(int\)blockIdx\.x == 0\)\) \{", ") {", "data-race", "store_global<"),
    generated(NESTED, "partial sums of parts laid over the exchange", r"weft::reduce_rows<weft::Sum, 2, false>\(value, 0\.f, reinterpret_cast<float\*>\(shared \+ p9\)", r"weft::reduce_rows<weft::Sum, 2, false>(value, 0.f, reinterpret_cast<float*>(shared + p0)", "data-race|uninitialised-read|mbarrier|phase|tx-count|deadlock", "reduce_"),
    generated(NESTED, "parts exchanged where the row was", r"(reduce_cluster<weft::Sum, 2>\(value, reinterpret_cast<float\*>\(shared \+) p0\)", r"\1 0)", "data-race|wrong-phase|tx-count|out-of-bounds|deadlock|uninitialised-read|phase-completes-early", "reduce_cluster"),
    generated(NESTED, "fewer values of parts awaited than are sent", r"(expect_cluster\(reinterpret_cast<float\*>\(shared \+ p0\), blockDim\.z) \* 2\)", r"\1 * 1)", "phase-completes-early|data-race|uninitialised-read|tx-count|wrong-phase", "reduce_cluster|expect_cluster"),
    library(NESTED, "sums of parts read before the other blocks have sent theirs", r"(values\[n\], |folded, values\[n\]\);\n  \}\n  )await_cluster\(exchange\);", r"\1;", "data-race|uninitialised-read|exit-with-pending-load|remote", "reduce_cluster<|store_global<"),
)

SCAN, SCAN_DOWN, POSITIONS, RECURRENCE = "shared_scan", "shared_scan_down", "shared_positions", "shared_recurrence"
TOTALS = "take_totals|hand_over|store_totals|fold_threads|load_shared|load_global<|combine"
SHARED_SCANS = (
    generated(SCAN, "totals of other blocks read before all have met", r"weft::meet_grid\(grid_barrier\);", ";", "data-race|uninitialised-read", TOTALS),
    generated(SCAN_DOWN, "no barrier of the block between its totals and the meeting", r"weft::block_sync\(\);(  // totals: stored)", r";\1", "data-race|uninitialised-read", TOTALS),
    generated(SCAN_DOWN, "no barrier of the block behind the meeting", r"weft::block_sync\(\);(  // totals: those)", r";\1", "data-race|uninitialised-read", TOTALS),
    library(SCAN, "a block's total folded before its warps have stored theirs", r"(store_totals\(totals, workspace, at\);\n  )block_sync\(\);", r"\1;", "data-race|uninitialised-read", TOTALS),
    library(SCAN_DOWN, "a column's total folded before its threads have stored theirs", r"(store_totals\(totals, workspace, at\);\n  )block_sync\(\);", r"\1;", "data-race|uninitialised-read", TOTALS),
    library(SCAN_DOWN, "parts of a piece folded before all warps have stored theirs", r"(prefix\[v\] = carry\.value\[v\];\n  \}\n  )block_sync\(\);", r"\1;", "data-race|uninitialised-read", TOTALS),
    library(SCAN_DOWN, "each piece in the first half of the workspace", r"carry\.odd = !carry\.odd;", ";", "data-race", TOTALS),
    library(SCAN, "totals of the blocks before where the first piece is", r"fold_threads<Op>\(before, workspace \+ at\.parts \* at\.rows, at\)", "fold_threads<Op>(before, workspace, at)", "data-race", TOTALS),
    generated(POSITIONS, "states of other blocks read before all have met", r"weft::meet_grid\(grid_barrier\);", ";", "data-race|uninitialised-read", TOTALS),
    library(POSITIONS, "states of a piece combined before all warps have stored theirs", r"(prefix\[v\] = carry\.value\[v\];\n  \}\n  )block_sync\(\);", r"\1;", "data-race|uninitialised-read", TOTALS),
    library(RECURRENCE, "steps of a piece folded before all warps have stored theirs", r"(store_totals\(own, mine, at\);\n  )block_sync\(\);", r"\1;", "data-race|uninitialised-read", TOTALS),
    library(RECURRENCE, "steps of each piece in the first half of the workspace", r"total\.odd = !total\.odd;", ";", "data-race", TOTALS),
    library(SCAN, "totals of a row where those of the next begin", r"(store_global\(totals \+ \()blockIdx\.y ", r"\1blockIdx.y / 2 ", "data-race|uninitialised-read", TOTALS),
)

TILES = "tiles"
TENSOR_MAPS = (
    generated(TILES, "wait for a tile dropped", r"weft::mbarrier_wait_phase\(full_0 \+ stage_0, i1 / 3\);", ";", "data-race|uninitialised-read", "load_shared|tensor_load"),
    generated(TILES, "wait for an empty stage dropped", r"weft::mbarrier_wait_phase\(empty_0 \+ stage_0, \(i1 / 3\) \+ -1\);", ";", "data-race|too-many-arrivals", "tensor_load|full_0"),
    generated(TILES, "bytes of half a tile announced", r"\? 512 : 0\)", "? 256 : 0)", "phase-completes-early|deadlock|tx-count-out-of-range", "full_0|tensor_load"),
    generated(TILES, "a tile where no tensor copy may begin", r"T2 \+ stage_0 \* 128, &map_T2", "T2 + stage_0 * 128 + 4, &map_T2", "misaligned-copy", "tensor_load"),
    generated(TILES, "a stage more than the ring has", r"T2 \+ stage_0 \* 128, &map_T2", "T2 + (stage_0 + 1) * 128, &map_T2", "out-of-bounds", "tensor_load"),
    generated(TILES, "tiles stored at half their distance", r"(tensor_store<2>[^\n]*, p2\) \*) 8\)\)", r"\1 4))", "data-race|output-not-written", "tensor_store"),
    generated(TILES, "a tile stored through the map of an input", r"tensor_store<2>\(&map_T1", "tensor_store<2>(&map_T2", "write-to-read-only", "tensor_store"),
    generated(TILES, "missing proxy fence before a tile is stored", r"weft::fence_proxy_async_shared\(\);\n", ";\n", "missing-proxy-fence", "tensor_store"),
    generated(TILES, "missing proxy fence between reading a tile and loading over it", r"weft::fence_proxy_async_shared\(\);(  // after)", r";\1", "missing-proxy-fence", "tensor_load"),
    generated(TILES, "barrier dropped before a tile is stored", r"weft::named_sync\(1, 128\);(  // T3: written)", r";\1", "data-race|uninitialised-read|missing-proxy-fence", "tensor_store|store_shared"),
    generated(TILES, "staging tile written while its store reads it", r"if \(threadIdx\.x == 0\) weft::bulk_wait_read<0>\(\);", ";", "data-race", "tensor_store|store_shared"),
    generated(TILES, "exit before the last tile is stored", r"if \(threadIdx\.x == 0\) weft::bulk_wait<0>\(\);", ";", "exit-with-pending-store", "tensor_store"),
)

# ---- types of which two share a byte, blocks in neighbouring lanes, scales in tiles: docs/narrow_types.md
NV, MX, FP4, GROUPS, HADAMARD, BOTH = "nvfp4_tiles", "mxfp8_lanes", "fp4_halves", "nvfp4_groups", "nvfp4_hadamard", "nvfp4_both_ways"
FOUR = "nvfp4_four_rows"
NARROW_TYPES = (
    generated(FP4, "elements counted where bytes are addressed", r"(T3 \+ \(\(int\)blockIdx\.x \*) 256", r"\1 512", "out-of-bounds|output-not-written", VECTOR_STORE),
    generated(FP4, "a vector that begins at any byte", r"(T0 \+ \(\(int\)blockIdx\.x \* 256\) \+) \(\(int\)threadIdx\.x \* 4\)", r"\1 ((int)threadIdx.x * 4) + 1", "misaligned|out-of-bounds", VECTOR_LOAD),
    generated(FP4, "half of a vector converted: bytes without a second element", r"convert_scaled_vector<8>\(T5, 0, T1, 0, 0\.5f\)", "convert_narrow_vector<4>(T5, 0, T1, 0)", "uninitialised-register", VECTOR_STORE),
    generated(FP4, "a byte written by two threads", r"(T3 \+ \(\(int\)blockIdx\.x \* 256\) \+ \(\(int\)threadIdx\.x) \* 4", r"\1 / 2 * 4", "data-race", VECTOR_STORE),
    generated(FP4, "index of bytes in a type too narrow for it", r"T0 \+ \(\(int\)blockIdx\.x \* 256\) \+ \(\(int\)threadIdx\.x \* 4\)", "T0 + (signed char)(((int)blockIdx.x * 256) + ((int)threadIdx.x * 4))", "out-of-bounds", VECTOR_LOAD),
    generated(FP4, "a predicate that splits the last vector's bytes off", r"< p0\) \{", "< p0 - 1) {", "output-not-written", VECTOR_STORE),
    generated(FP4, "packed bytes stored over the input they come from", r"(store_global_vector<8, weft::Cache::unspecified>\()T3", r"\1const_cast<weft::e2m1_pair*>(T0)", "write-to-read-only", VECTOR_STORE),
    generated(NV, "stride of a row not halved", r"\(\(int\)threadIdx\.y \* (p\d+)\) / 2\)", r"((int)threadIdx.y * \1))", "out-of-bounds|data-race|output-not-written", VECTOR_STORE),
    generated(NV, "padding of tiles not filled", r"if \((p\d+)\) weft::zero_tile_padding", r"if (\1 && !blockDim.x) weft::zero_tile_padding", "output-not-written", "store_global"),
    library(NV, "padding of tiles one row too long", r"\(all_rows - rows\) \* all_columns", "(all_rows + 1 - rows) * all_columns", "out-of-bounds", "tiled_offset"),
    library(NV, "padding of columns forgotten", r"rows \* \(all_columns - columns\)", "0 * (all_columns - columns)", "output-not-written", "store_global"),
    generated(NV, "scales of neighbours in one place of a tile", r"\(int\)threadIdx\.x % 4\)", "(int)threadIdx.x % 2)", "data-race", "store_global"),
    generated(NV, "scales one tile too far", r"\(\(int\)threadIdx\.x / 4\) \* 512", "(((int)threadIdx.x / 4) + 1) * 512", "out-of-bounds|output-not-written", "store_global"),
    generated(FOUR, "scales stored of rows that are not there", r"(T\d+_rows\[\w+\]), [^;]*< p\d+\);", r"\1, true);", "data-race", "store_global"),
    generated(FOUR, "scales stored by some lanes of a warp", r"(\n *)weft::store_scales\(", r"\1if (threadIdx.x % 4) weft::store_scales(", "exited-lanes-in-mask|divergent-collective", "store_scales|shuffle_xor"),
    library(FOUR, "four lanes store one row", r"first \+ 3 \* column", "first - column", "data-race|output-not-written", "store_global"),
    generated(GROUPS, "what lies between tiles of groups not filled", r"weft::zero_grouped_padding", "if (p0 < 0) weft::zero_grouped_padding", "output-not-written", r"store_global|^\}$"),
    library(GROUPS, "groups found by where they end", r"load_global\(begins \+ middle\) <= row", "load_global(begins + middle) < row", "out-of-bounds|data-race|output-not-written", "load_global|store_global"),
    library(GROUPS, "scales of a group behind its own tiles", r"\+ \(Index\)load_global\(places \+ group\)", "+ (Index)load_global(places + group) + 128", "data-race|out-of-bounds|output-not-written", "store_global"),
    library(GROUPS, "zeros over scales of the last columns", r"r < last \? columns - c : 0", "r < last ? columns - c - 1 : 0", "data-race", "store_global"),
    generated(HADAMARD, "lanes of a transform where some of them are not", r"(\n *)(weft::block_hadamard<4, 4, )", r"\1if ((((int)blockIdx.x * 64) + (int)threadIdx.x) < p0) \2", "exited-lanes-in-mask|divergent-collective", "hadamard|shuffle_xor"),
    generated(BOTH, "columns that begin at every other byte of their own", r"(\(int\)blockIdx\.x \* 32\) \+ \(\(int\)threadIdx\.y) \* 8\)\)", r"\1 * 4))", "data-race|misaligned|output-not-written", VECTOR_STORE),
    generated(BOTH, "a tile's columns stored where the next tile's are", r"(_at\d+) \+ i9 \* (p\d+)", r"\1 + (i9 + 1) * \2", "out-of-bounds|data-race|output-not-written", VECTOR_STORE),
    generated(BOTH, "half of a column converted", r"convert_scaled_vector<16, 4>\(", "convert_scaled_vector<8, 4>(", "uninitialised-register", VECTOR_STORE),
    generated(MX, "lanes of a block folded where some of them are not", r"(\n *)(weft::block_amax<8, 32, 4>)", r"\1if ((((int)blockIdx.x * 64) + (int)threadIdx.x) < p0) \2", "exited-lanes-in-mask", "amax"),
    generated(MX, "every lane of a block stores its scale", r"if \(\(\(\(int\)threadIdx\.x \* 8\) % 32\) == 0\)", "if (true)", "data-race", "store_global"),
    generated(MX, "scales indexed by element instead of block", r"\(\(int\)blockIdx\.x \* 16\) \+ \(\(int\)threadIdx\.x / 4\)", "((int)threadIdx.x * 8) + ((int)blockIdx.x * 512)", "out-of-bounds|output-not-written", "store_global"),
)

# ---- kernels that start before the one in front of them has ended
EARLY = "access-before-griddep-wait"
DEPENDENT_LAUNCHES = (
    generated("softmax_registers", "wait for the kernel before dropped", r"weft::griddep_wait\(\);", ";", EARLY, VECTOR_LOAD),
    generated("softmax_registers", "wait behind the first load", r"weft::griddep_wait\(\);((?:(?!weft::griddep_launch)[\s\S])*)weft::griddep_launch\(\);", r";\1weft::griddep_wait();", EARLY, VECTOR_LOAD),
    generated("softmax_registers", "only the first warp waits for the kernel before", r"weft::griddep_wait\(\);", "if (threadIdx.x < 32) weft::griddep_wait();", EARLY, VECTOR_LOAD),
    generated(RING, "copies of async warps issued before the kernel before has ended", r"weft::griddep_wait\(\);", ";", EARLY, "bulk_load"),
    generated("tiles", "tensor copies issued before the kernel before has ended", r"weft::griddep_wait\(\);", ";", EARLY, "tensor_load"),
    generated("pointwise", "a result stored while the kernel before may still read there", r"weft::griddep_wait\(\);", "if (blockIdx.x) weft::griddep_wait();", EARLY, VECTOR_STORE + "|" + VECTOR_LOAD),
)

# ---- two kernels at once: the same one without a mistake goes before, and has let the next start in front of its last stores
OVERLAP, WAIT = "overlaps-kernel-before", r"weft::griddep_wait\(\);"
TO_THE_END = r"weft::griddep_wait\(\);([\s\S]*)\n\}\s*$"
OVERLAPPED = (
    generated("softmax_registers", "no wait, behind a kernel that has let it start before its last store", WAIT, ";", OVERLAP, VECTOR_LOAD, behind="reads"),
    generated("softmax_registers", "wait behind the first load of the kernel before's result", r"weft::griddep_wait\(\);((?:(?!weft::griddep_launch)[\s\S])*)weft::griddep_launch\(\);", r";\1weft::griddep_wait();", OVERLAP, VECTOR_LOAD, behind="reads"),
    generated("softmax_registers", "one warp waits, no barrier behind", WAIT, "if (threadIdx.x < 32) weft::griddep_wait();", OVERLAP, VECTOR_LOAD, behind="reads"),
    generated("pointwise", "one block does not wait", WAIT, "if (blockIdx.x) weft::griddep_wait();", OVERLAP, VECTOR_LOAD, behind="reads"),
    generated("pointwise", "stored before the wait over what the kernel before reads", TO_THE_END, r";\1 weft::griddep_wait();\n}\n", OVERLAP, VECTOR_STORE, behind="overwrites"),
    generated("column_sum", "partial sums in scratch memory that the kernel before still uses", WAIT, ";", OVERLAP, "weft::arrive_grid|weft::fold_partials", behind="shares"),
    generated(RING, "copies of async warps of what the kernel before has not stored", WAIT, ";", OVERLAP, "bulk_load", behind="reads"),
    generated("tiles", "tensor copies of what the kernel before has not stored", WAIT, ";", OVERLAP, "tensor_load", behind="reads"),
    generated("pointwise", "no thread waits where nothing of the kernel before is touched", WAIT, ";", "no-griddep-wait", "__global__", behind="shares"),
)

MISTAKES = (*GENERATED, *GENERATED_PIPELINES, *TENSOR_MAPS, *TWO_SIDES, *NESTED_ROWS, *SHARED_SCANS, *NARROW_TYPES, *DEPENDENT_LAUNCHES, *OVERLAPPED, *PIPELINES)


# ---------------------------------------------------------------- planting and running
def changed(text: str, mistake: Mistake) -> str:
    """Return the text with the mistake. Errors: NothingToChange."""
    if not mistake.old or mistake.old == "$^":
        return text
    places = list(re.finditer(mistake.old, text, re.DOTALL if r"(?:(?!" in mistake.old else 0))
    if len(places) <= mistake.nth or mistake.of and len(places) != mistake.of:
        raise NothingToChange(claim=mistake.claim, kernel=mistake.kernel, count=len(places), old=mistake.old, wanted=mistake.of or "more")
    place = places[mistake.nth]
    return text[: place.start()] + place.expand(mistake.new) + text[place.end() :]


@dataclass(frozen=True)
class Subject:
    """A kernel with a launch, before a mistake is planted. own: the kernel's text; unit: all of it; scalars: are they checked."""

    own: str
    unit: str
    entry: str
    origins: tuple[Any, ...]
    geometry: dict[str, Any]
    arguments: Sequence[Any]
    options: dict[str, Any]
    keep: Any = None
    shared_tensors: tuple[str, ...] = ()


def subject(name: str) -> Subject:
    """Return a kernel of the table as it is without a mistake."""
    if name == PIPELINE:
        made = load(EXAMPLES / "rmsnorm.cu", EXAMPLES / "rmsnorm.toml")
        own = (EXAMPLES / "rmsnorm.cu").read_text(encoding="utf-8")
        return Subject(own, translation_unit(own, ["cast"]), "rmsnorm", (), made.geometry, made.arguments, made.options, made.keep)
    found = captured(name)
    program = found.call.program
    return Subject(
        program.text, translation_unit(program.text, program.blocks), program.name, program.origins, found.geometry, found.arguments, {},
        shared_tensors=tuple(name for name, _ in program.shared_tensors),
    )  # fmt: skip


def mistaken_unit(at: Subject, mistake: Mistake) -> str:
    """Return the translation unit with the mistake, as both NVRTC and the emulator take it."""
    own = at.own.rstrip()
    above, below = at.unit.split(own)
    return changed(above, mistake) + own + below if mistake.in_library else above + changed(own, mistake) + below


def run(mistake: Mistake, seeds: Iterable[int | None] = range(SEEDS)) -> "Verdict":
    """Plant a mistake, and launch the kernel once per seed. Errors: NothingToChange."""
    at = subject(mistake.kernel)
    kernel, geometry = _built(mistake), {**at.geometry, **mistake.geometry}
    if not mistake.behind:
        return Verdict(mistake, explore(kernel, geometry, at.arguments, seeds, **at.options))
    before = _built(replace(unchanged(mistake), behind=""))
    first, second = behind_itself(at.arguments, mistake.behind)
    return Verdict(mistake, explore_pair(KernelCall(before, at.geometry, first), KernelCall(kernel, geometry, second), [(seed, "early") for seed in seeds]))


def _built(mistake: Mistake) -> EmulatedKernel:
    """Return the kernel with the mistake, with all checks. Errors: NothingToChange."""
    at = subject(mistake.kernel)
    unit = mistaken_unit(at, mistake)
    own = at.own.rstrip() if mistake.in_library else changed(at.own.rstrip(), mistake)
    source_map = SourceMap.of(unit, own, at.origins)
    watched = with_shared_tensors(noted(with_checked_scalars(own, at.origins), at.origins), at.shared_tensors)
    return EmulatedKernel(unit.replace(own, watched), at.entry, check="races", source_map=source_map)


@dataclass(frozen=True)
class Verdict:
    """What the orders of a mistaken kernel showed."""

    mistake: Mistake
    exploration: Exploration

    @property
    def naming(self) -> list[Found]:
        """Findings of a kind that names the mistake, at a right line."""
        kinds = self.mistake.kinds.split("|")
        right = [f for f in self.exploration.found if f.finding.kind in kinds and any(re.search(self.mistake.line, p.text) for p in f.finding.places)]
        return sorted(right, key=lambda f: (-len(f.seeds), kinds.index(f.finding.kind)))

    @property
    def seeds(self) -> list[Order]:
        """The seeds that show it."""
        shown = {seed for found in self.naming for seed in found.seeds}
        return [seed for seed in self.exploration.reports if seed in shown]

    @property
    def is_found(self) -> bool:
        return bool(self.naming)

    @property
    def line(self) -> str:
        """The line that the report names first."""
        places = [p for p in self.naming[0].finding.places if re.search(self.mistake.line, p.text)] if self.naming else []
        return f"{places[0].line}: {places[0].text}" if places else ""


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the table as Markdown."""
    rows = ["| kernel | planted mistake | reported as | at line | orders |", "|---|---|---|---|---|"]
    for v in verdicts:
        kind = v.naming[0].finding.kind if v.is_found else "**missed**"
        line = v.line if len(v.line) <= 70 else v.line[:67] + "..."
        cell = f"`{line}`".replace("|", "\\|") if line else ""
        rows.append(f"| {v.mistake.kernel} | {v.mistake.claim} | {kind} | {cell} | {len(v.seeds)} of {len(v.exploration.reports)} |")
    return "\n".join(rows)


def unchanged(mistake: Mistake) -> Mistake:
    """The same kernel without the mistake."""
    return replace(mistake, old="$^", new="", geometry={})
