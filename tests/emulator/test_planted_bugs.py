# ruff: noqa: E501  (a rule is one line of a table)
"""Mistakes planted in two correct kernels: the checked build reports each of them, whatever the schedule."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from row_kernels import RMSNORM, SOFTMAX, planted, run_rmsnorm, run_softmax

SCHEDULES = [dict(seed=None), dict(seed=None, copy_timing="at once"), dict(seed=1), dict(seed=2), dict(seed=3, schedule="random lanes")]


@dataclass(frozen=True)
class Bug:
    claim: str
    old: str
    new: str
    kind: str  # the finding that names the mistake; others may come along


SOFTMAX_BUGS = [
    Bug("no barrier between writing and reading the partials", "  weft::block_sync();\n  for (int w = 0; w < 4; w++) { const", "  for (int w = 0; w < 4; w++) { const", "data-race"),
    Bug("a vector too far for the last thread", "row + (i * 128 + t) * 8)", "row + (i * 128 + t + (i == VECTORS - 1)) * 8)", "out-of-bounds"),
    Bug("a misaligned 16-byte load", "row + (i * 128 + t) * 8)", "row + (i * 128 + t) * 8 + (blockIdx.x == 1))", "misaligned"),
    Bug("a partial that nobody wrote", "load_shared(partial + w); m", "load_shared(partial + (w == 3 ? 7 : w)); m", "uninitialised-read"),
    Bug("the partials reused without a barrier", "partial + 4 + warp", "partial + warp", "data-race"),
    Bug("a barrier that one warp skips", "  weft::block_sync();\n  s = 0.f;", "  if (warp < 3) weft::block_sync();\n  s = 0.f;", "data-race"),
    Bug("an output row too many", "T1 + (long long)blockIdx.x * COLS", "T1 + ((long long)blockIdx.x + 1) * COLS", "out-of-bounds"),
    Bug("an output half written", "weft::store_global_vector<8>(T1", "if (i == 0 && t < 64) weft::store_global_vector<8>(T1", "output-not-written"),
    Bug("all blocks write one row", "T1 + (long long)blockIdx.x * COLS", "T1", "data-race"),
    Bug("a write to the input", "weft::store_global_vector<8>(T1 +", "weft::store_global_vector<8>((weft::bf16*)T0 +", "write-to-read-only"),
    Bug("an uninitialised register", "for (int i = 0; i < VECTORS; i++) {\n    weft::load", "for (int i = 0; i < VECTORS - 1; i++) {\n    weft::load", "uninitialised-register"),
    Bug("a shuffle in one half of the warp", "s += weft::shuffle_xor(s, o);", "if (weft::lane() < 16) s += weft::shuffle_xor(s, o);", "deadlock"),
]  # fmt: skip

EXPECT_0 = "weft::mbarrier_arrive_expect_tx(full_0 + stage, tile_rows * ROW_BYTES);"
LOAD_0 = "weft::bulk_load(T0_s + stage * 2 * COLS, T0 + (long long)tile * 2 * COLS, tile_rows * ROW_BYTES, full_0 + stage);"
RELEASE = "weft::mbarrier_arrive(empty_0 + stage); weft::mbarrier_arrive(empty_1 + stage);"
RMSNORM_BUGS = [
    Bug("both loaders share one full barrier", "* full_1 = full_0 + STAGES", "* full_1 = full_0", "too-many-arrivals|phase-not-observed"),
    Bug("no wait for an empty slot", "        weft::mbarrier_wait_phase(empty_1 + stage, round - 1);\n", "", "data-race"),
    Bug("no barrier in the reduction", "        weft::named_sync(1 + group, 128);   // reduction\n", "", "data-race"),
    Bug("16 bytes announced too many", EXPECT_0, EXPECT_0.replace("ROW_BYTES", "ROW_BYTES + 16"), "deadlock"),
    Bug("one row announced of two", EXPECT_0, EXPECT_0.replace("tile_rows *", ""), "phase-completes-early"),
    Bug("a slot released before it is read", "        // before reading", f"weft::warp_sync(); if (weft::lane() == 0) {{ {RELEASE} }}", "data-race"),
    Bug("a loader's parity that never flips", "wait_phase(empty_1 + stage, round - 1)", "wait_parity(empty_1 + stage, 1)", "data-race"),
    Bug("a loader's phase that never advances", "wait_phase(empty_1 + stage, round - 1)", "wait_phase(empty_1 + stage, -1)", "wrong-phase|data-race"),
    Bug("more registers than the pool holds", "setmaxnreg_inc<232>", "setmaxnreg_inc<240>", "deadlock"),
    Bug("no proxy fence before the bulk store", "        weft::fence_proxy_async_shared();\n", "", "missing-proxy-fence"),
    Bug("no proxy fence between reading a slot and loading over it", "weft::fence_proxy_async_shared();   // reads before a copy", "", "missing-proxy-fence"),
    Bug("no wait before the staging is reused", "        if (t == 0) weft::bulk_wait_read<0>();\n", "", "data-race"),
    Bug("both groups on one named barrier", "named_sync(1 + group, 128);   // reduction", "named_sync(1, 128);   // reduction", "data-race"),
    Bug("no barrier after the barriers' init", "  weft::block_sync();   // init\n", "", "data-race|mbarrier-not-initialised"),
    Bug("no wait for the store before exit", "    if (t == 0) weft::bulk_wait<0>();\n", "", "exit-with-pending-store"),
    Bug("setmaxnreg in half a warpgroup", "    weft::setmaxnreg_dec<40>();", "    if (warp < 2) weft::setmaxnreg_dec<40>();", "setmaxnreg-not-uniform|deadlock"),
    Bug("lane 0 releases without warp_sync", "        weft::warp_sync(0xffffffffu);   // release\n", "", "data-race"),
    Bug("the tail copies a row too many", LOAD_0, LOAD_0.replace("tile_rows *", "2 *"), "out-of-bounds"),
    Bug("a misaligned copy", LOAD_0, LOAD_0.replace("T0 + (", "T0 + 4 + ("), "misaligned-copy"),
    Bug("an arrival too many expected", "mbarrier_init(empty_0 + s, 8)", "mbarrier_init(empty_0 + s, 9)", "deadlock"),
    Bug("the producer's first phase is off", "wait_phase(empty_0 + stage, round - 1)", "wait_phase(empty_0 + stage, round)", "deadlock"),
    Bug("two counts for one barrier", "named_sync(1 + group, 128);   // output", "named_sync(1 + group, 96);   // output", "too-many-at-barrier|barrier-count-mismatch"),
]  # fmt: skip


def schedule_name(options: dict) -> str:
    return "-".join(str(v) for v in options.values())


@pytest.mark.parametrize("bug", SOFTMAX_BUGS, ids=lambda b: b.claim)
def test_softmax_mistake_is_reported_under_every_schedule(bug: Bug) -> None:
    for options in SCHEDULES:
        report, _ = run_softmax(planted(SOFTMAX, bug.old, bug.new), raise_findings=False, **options)
        assert report.kinds() & set(bug.kind.split("|")), f"{schedule_name(options)}: {[f.text() for f in report.findings]}"


@pytest.mark.parametrize("bug", RMSNORM_BUGS, ids=lambda b: b.claim)
def test_rmsnorm_mistake_is_reported_under_every_schedule(bug: Bug) -> None:
    for options in SCHEDULES:
        report, _ = run_rmsnorm(planted(RMSNORM, bug.old, bug.new), raise_findings=False, **options)
        assert report.kinds() & set(bug.kind.split("|")), f"{schedule_name(options)}: {[f.text() for f in report.findings]}"


@pytest.mark.parametrize("seed", [None, *range(8)])
def test_correct_kernels_run_clean(seed: int | None) -> None:
    assert run_softmax(seed=seed)[1] < 1.1
    assert run_rmsnorm(seed=seed)[1] < 1.1


@pytest.mark.parametrize("timing", ["late", "at once"])
def test_correct_kernels_run_clean_with_copies(timing: str) -> None:
    assert run_rmsnorm(copy_timing=timing)[1] < 1.1
    assert run_rmsnorm(copy_timing=timing, seed=5, schedule="random lanes", copy_pieces=5)[1] < 1.1
