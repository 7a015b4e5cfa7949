# ruff: noqa: E501  (a rule is one line of a table)
"""One rule of the machine per kernel: what is legal stays silent, what is not is named. Under every schedule."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from rule_kernels import SCHEDULES, run_rule


@dataclass(frozen=True)
class Rule:
    claim: str
    body: str
    kinds: str = ""  # exactly these findings, separated by blanks; those that end in "?" may come along
    options: dict = field(default_factory=dict)


FILL = "weft::store_shared(s + t, weft::load_global(T0 + t));"
READ_NEIGHBOUR = "weft::store_global(T1 + b * 64 + t, weft::load_shared(s + (t ^ 1)));"
READ_FAR = "weft::store_global(T1 + b * 64 + t, weft::load_shared(s + (t ^ 32)));"
INIT = "if (t == 0) { weft::mbarrier_init(bar, %d); weft::fence_mbarrier_init(); } weft::block_sync();"
PUBLISH = "if (b == 0) { weft::store_global(work + t, 1.f); weft::block_sync(); if (t == 0) { %s } } else { if (t == 0) { %s } weft::block_sync(); weft::store_global(T1 + t, weft::load_global(work + t)); }"
FENCED_STORE = "weft::thread_fence(); weft::store_global_volatile(flags, 1u);"
FENCED_WAIT = "while (weft::load_global_volatile(flags) == 0) weft::nanosleep(20); weft::thread_fence();"
LAST_BLOCK = (
    "weft::store_global(work + b * 64 + t, (float)t); %s weft::block_sync();"
    "if (t == 0) weft::store_shared((unsigned*)s, weft::atomic_add(flags, 1u)); weft::block_sync();"
    "if (weft::load_shared((unsigned*)s) == gridDim.x - 1) { %s float sum = 0.f; for (int i = 0; i < (int)gridDim.x; i++) sum += weft::load_global(work + i * 64 + t); weft::store_global(T1 + t, sum); }"
)
GRID_SYNC = (
    "weft::store_global(work + b * 64 + t, (float)b); weft::block_sync();"
    "if (t == 0) { weft::atomic_add_acquire_release(flags, 1u); while (weft::load_acquire(flags) < gridDim.x) weft::nanosleep(10); } weft::block_sync();"
    "float sum = 0.f; for (int i = 0; i < (int)gridDim.x; i++) sum += weft::load_global(work + i * 64 + t); weft::store_global(T1 + b * 64 + t, sum);"
)
LOAD = "if (t == 0) { weft::mbarrier_arrive_expect_tx(bar, 256); weft::bulk_load(s, T0, 256, bar); }"
STORE = "if (t == 0 && b == 0) { weft::bulk_store(T1, s, 256); weft::bulk_commit(); %s }"
CLUSTER = dict(cluster=(2, 1, 1))

SHARED = [
    Rule("block_sync orders", FILL + "weft::block_sync();" + READ_FAR),
    Rule("no order without a barrier", FILL + READ_FAR, "data-race uninitialised-read?"),
    Rule("warp_sync orders within the warp", FILL + "weft::warp_sync();" + READ_NEIGHBOUR),
    Rule("warp_sync does not order between warps", FILL + "weft::warp_sync();" + READ_FAR, "data-race uninitialised-read?"),
    Rule("a shuffle does not order", FILL + "weft::shuffle_xor(1.f, 1);" + READ_NEIGHBOUR, "data-race"),
    Rule("a ballot does not order", FILL + "weft::ballot(true);" + READ_NEIGHBOUR, "data-race"),
    Rule("an election does not order", FILL + "weft::elect();" + READ_NEIGHBOUR, "data-race"),
    Rule("a write after others' reads needs order", FILL + "weft::block_sync(); float v = weft::load_shared(s + (t ^ 32)); weft::store_shared(s + t, v);", "data-race"),
    Rule("a write after others' reads and a barrier", FILL + "weft::block_sync(); float v = weft::load_shared(s + (t ^ 32)); weft::block_sync(); weft::store_shared(s + t, v);"),
    Rule("many may read one value", "if (t == 0) weft::store_shared(s, 1.f); weft::block_sync(); weft::load_shared(s); weft::block_sync(); if (t == 33) weft::store_shared(s, 2.f);"),
    Rule("reading what nobody wrote", "weft::load_shared(s + t);", "uninitialised-read"),
    Rule("a byte beside another thread's byte", "weft::store_shared((signed char*)s + t, (signed char)t);"),
    Rule("a float over another thread's byte", "if (t == 5) weft::store_shared((signed char*)s + 20, (signed char)1); if (t == 40) weft::store_shared(s + 5, 1.f);", "data-race"),
    Rule("named barriers order their threads", FILL + "weft::named_sync(1, 64);" + READ_FAR),
    Rule("an arrival releases, a sync acquires", "if (t < 32) { weft::store_shared(s + t, 1.f); weft::named_arrive(1, 64); } else { weft::named_sync(1, 64); weft::load_shared(s + t - 32); }"),
    Rule("an arrival does not acquire", "if (t < 32) { weft::named_arrive(1, 64); weft::load_shared(s + t + 32); } else { weft::store_shared(s + t, 1.f); weft::named_sync(1, 64); }", "data-race uninitialised-read?"),
    Rule("atomics on one place", "if (t == 0) weft::store_shared((unsigned*)s, 0u); weft::block_sync(); weft::atomic_add((unsigned*)s, 1u); weft::block_sync(); weft::store_global(T1, (float)weft::load_shared((unsigned*)s));", "data-race", dict(blocks=2)),
    Rule("atomics on one place, one block", "if (t == 0) weft::store_shared((unsigned*)s, 0u); weft::block_sync(); weft::atomic_add((unsigned*)s, 1u); weft::block_sync(); if (t == 0) weft::store_global(T1, (float)weft::load_shared((unsigned*)s));", "", dict(blocks=1)),
    Rule("an atomic against a plain write", "if (t == 0) weft::store_global(flags, 1u); else weft::atomic_add(flags, 1u);", "data-race"),
]  # fmt: skip

GLOBAL = [
    Rule("32 bytes at once, from a multiple of 32", "weft::Array<float, 8> a; weft::load_global_vector<8>(a, 0, T0 + t % 8 * 8); weft::store_global_vector<8>(work + (b * 64 + t) * 8, a, 0);"),
    Rule("32 bytes at once, from a multiple of 16", "weft::Array<float, 8> a; weft::load_global_vector<8>(a, 0, T0 + t % 8 * 8 + 4);", "misaligned"),
    Rule("32 bytes stored at a multiple of 16", "weft::Array<float, 8> a; a.fill(1.f); weft::store_global_vector<8>(work + (b * 64 + t) * 8 + 4, a, 0);", "misaligned out-of-bounds?"),
    Rule("two blocks write one place", "weft::store_global(T1 + t, 1.f);", "data-race"),
    Rule("a block reads what another wrote", "if (b == 0) weft::store_global(work + t, 1.f); else weft::load_global(work + t);", "data-race uninitialised-read?", dict(seed=None)),
    Rule("reading an uninitialised workspace", "weft::load_global(work + t);", "uninitialised-read"),
    Rule("release and acquire of a flag", PUBLISH % ("weft::store_release(flags, 1u);", "while (weft::load_acquire(flags) == 0) weft::nanosleep(20);")),
    Rule("a block may wait for a later one", (PUBLISH % ("weft::store_release(flags, 1u);", "while (weft::load_acquire(flags) == 0) {}")).replace("b == 0", "b == 1")),
    Rule("volatile accesses do not order", PUBLISH % ("weft::store_global_volatile(flags, 1u);", "while (weft::load_global_volatile(flags) == 0) {}"), "data-race"),
    Rule("volatile accesses and fences do", PUBLISH % (FENCED_STORE, FENCED_WAIT)),
    Rule("the reader needs its fence", PUBLISH % (FENCED_STORE, FENCED_WAIT.replace("weft::thread_fence();", "")), "data-race"),
    Rule("the writer needs its fence", PUBLISH % (FENCED_STORE.replace("weft::thread_fence();", ""), FENCED_WAIT), "data-race"),
    Rule("the last block may read all partials", LAST_BLOCK % ("weft::block_sync(); if (t == 0) weft::thread_fence();", "weft::block_sync(); "), "data-race"),
    Rule("the last block reads after a fence", (LAST_BLOCK % ("weft::block_sync(); if (t == 0) weft::thread_fence();", "")).replace("flags, 1u)); weft::block_sync();", "flags, 1u)); if (t == 0) weft::thread_fence(); weft::block_sync();"), "", dict(blocks=4)),
    Rule("every writer fences, then one thread counts", (LAST_BLOCK % ("weft::thread_fence();", "")).replace("flags, 1u)); weft::block_sync();", "flags, 1u)); if (t == 0) weft::thread_fence(); weft::block_sync();"), "", dict(blocks=4)),
    Rule("a fence before the write is none", (LAST_BLOCK % ("", "")).replace("flags, 1u)); weft::block_sync();", "flags, 1u)); if (t == 0) weft::thread_fence(); weft::block_sync();").replace("weft::store_global(work", "weft::thread_fence(); weft::store_global(work"), "data-race", dict(blocks=4)),
    Rule("partials without the writer's fence", (LAST_BLOCK % ("", "")).replace("flags, 1u)); weft::block_sync();", "flags, 1u)); if (t == 0) weft::thread_fence(); weft::block_sync();"), "data-race", dict(blocks=4)),
    Rule("a barrier of the grid", GRID_SYNC, "", dict(blocks=5)),
    Rule("a barrier of the grid, cooperative", GRID_SYNC, "", dict(blocks=5, cooperative=True)),
    Rule("a barrier of the grid that one block skips", "if (b != 2) { " + GRID_SYNC + " }", "deadlock", dict(blocks=4)),
    Rule("waiting by an atomic that adds nothing", PUBLISH % ("weft::store_release(flags, 1u);", "while (weft::atomic_add_acquire_release(flags, 0u) == 0) {}")),
    Rule("looking often without waiting", "for (int i = 0; i < 100; i++) weft::load_acquire(flags); for (int i = 0; i < 100; i++) { weft::load_acquire(flags); weft::load_acquire(flags + 1); }"),
    Rule("a value that never comes", "if (t == 0) while (weft::load_acquire(flags) != 7) weft::nanosleep(20);", "deadlock"),
    Rule("an access after griddep_wait", "weft::griddep_wait(); weft::load_global(T0 + t); weft::griddep_launch();"),
    Rule("an access before griddep_wait", "weft::load_global(T0 + t); weft::griddep_wait(); weft::load_global(T0 + t);", "access-before-griddep-wait"),
]  # fmt: skip

MBARRIERS = [
    Rule("arrivals release, waiters acquire", INIT % 64 + FILL + "weft::mbarrier_arrive(bar); weft::mbarrier_wait_parity(bar, 0);" + READ_FAR),
    Rule("parity 1 of a fresh barrier has passed", INIT % 64 + "weft::mbarrier_wait_parity(bar, 1); weft::mbarrier_wait_phase(bar, -1);"),
    Rule("one arrival missing", INIT % 65 + "weft::mbarrier_arrive(bar); weft::mbarrier_wait_parity(bar, 0);", "deadlock"),
    Rule("one arrival too many", INIT % 63 + "weft::mbarrier_arrive(bar);", "phase-not-observed"),
    Rule("not initialised", "weft::mbarrier_arrive(bar);", "mbarrier-not-initialised"),
    Rule("initialised twice", INIT % 1 + "if (t == 0) weft::mbarrier_init(bar, 1);", "mbarrier-reinitialised"),
    Rule("used after inval", INIT % 1 + "if (t == 0) { weft::mbarrier_inval(bar); weft::mbarrier_arrive(bar); }", "mbarrier-not-initialised"),
    Rule("memory is free after inval", INIT % 1 + "if (t == 0) weft::mbarrier_inval(bar); weft::block_sync(); if (t == 5) { weft::store_shared((float*)bar, 1.f); weft::load_shared((float*)bar); }"),
    Rule("init needs a barrier before use", "if (t == 0) weft::mbarrier_init(bar, 1); weft::warp_sync(); if (t == 1) weft::mbarrier_arrive(bar); if (t == 33) { while (weft::load_global_volatile(flags) == 9) {} }"),
    Rule("a bad place", "weft::mbarrier_init((unsigned long long*)(s + 1), 1);", "bad-mbarrier-address"),
    Rule("a bad count", "weft::mbarrier_init(bar, 0);", "bad-mbarrier-count"),
    Rule("a plain read of a barrier", INIT % 1 + "weft::load_shared(s + 1024);", "plain-access-to-mbarrier"),
    Rule("a phase two behind", INIT % 1 + "if (t == 0) for (int i = 0; i < 3; i++) { weft::mbarrier_arrive(bar); weft::mbarrier_wait_phase(bar, i); } weft::block_sync(); if (t == 1) weft::mbarrier_wait_phase(bar, 1);", "wrong-phase deadlock?"),
    Rule("a phase nobody waited for", INIT % 1 + "if (t == 0) { weft::mbarrier_arrive(bar); weft::mbarrier_arrive(bar); }", "phase-not-observed"),
    Rule("too many bytes announced", INIT % 1 + "if (t == 0) { weft::mbarrier_expect_tx(bar, 1000000); weft::mbarrier_expect_tx(bar, 1000000); }", "tx-count-out-of-range"),
    Rule("remote arrivals", INIT % 128 + "weft::cluster_sync(); for (int r = 0; r < 2; r++) weft::mbarrier_arrive_remote(bar, r); weft::mbarrier_wait_parity(bar, 0); weft::cluster_sync();", "", CLUSTER),
]  # fmt: skip

COPIES = [
    Rule("a load, waited for", INIT % 1 + LOAD + "weft::mbarrier_wait_phase(bar, 0);" + READ_FAR),
    Rule("a load, not waited for", INIT % 1 + LOAD + "weft::load_shared(s + t); weft::mbarrier_wait_phase(bar, 0);", "data-race uninitialised-read?"),
    Rule("a load may finish before it is announced", INIT % 1 + "if (t == 0) { weft::bulk_load(s, T0, 256, bar); weft::mbarrier_arrive_expect_tx(bar, 256); } weft::mbarrier_wait_phase(bar, 0);" + READ_FAR),
    Rule("a load in flight at exit", INIT % 1 + LOAD, "exit-with-pending-load", dict(copy_timing="late")),
    Rule("a load publishes its own bytes only", INIT % 1 + "if (t == 0) { weft::mbarrier_arrive_expect_tx(bar, 256); weft::store_shared(s + 512, 1.f); weft::bulk_load(s, T0, 256, bar); } weft::mbarrier_wait_phase(bar, 0); weft::load_shared(s + 512);", "data-race"),
    Rule("a load over what others still read", FILL + INIT % 1 + "weft::load_shared(s + t);" + LOAD + "weft::mbarrier_wait_phase(bar, 0);", "data-race missing-proxy-fence"),
    Rule("a load over what others read before a barrier", FILL + "weft::fence_proxy_async();" + INIT % 1 + "weft::load_shared(s + t); weft::block_sync(); if (t == 0) weft::fence_proxy_async_shared();" + LOAD + "weft::mbarrier_wait_phase(bar, 0);"),
    Rule("a load over what each thread has read and fenced before a barrier", FILL + "weft::fence_proxy_async();" + INIT % 1 + "weft::load_shared(s + t); weft::fence_proxy_async_shared(); weft::block_sync();" + LOAD + "weft::mbarrier_wait_phase(bar, 0);"),
    Rule("a load over what others read before a barrier, without a fence", FILL + "weft::fence_proxy_async();" + INIT % 1 + "weft::load_shared(s + t); weft::block_sync();" + LOAD + "weft::mbarrier_wait_phase(bar, 0);", "missing-proxy-fence"),
    Rule("a load over what one thread read, without a fence", FILL + "weft::fence_proxy_async();" + INIT % 1 + "if (t == 3) weft::load_shared(s + t); weft::block_sync();" + LOAD + "weft::mbarrier_wait_phase(bar, 0);", "missing-proxy-fence"),
    Rule("a load whose barrier's init is not fenced", (INIT % 1).replace("weft::fence_mbarrier_init();", "") + LOAD + "weft::mbarrier_wait_phase(bar, 0);", "missing-proxy-fence"),
    Rule("a load whose barrier's init is fenced by who issues it", (INIT % 1).replace("weft::fence_mbarrier_init();", "") + "if (t == 0) weft::fence_proxy_async();" + LOAD + "weft::mbarrier_wait_phase(bar, 0);"),
    Rule("a misaligned load", INIT % 1 + "if (t == 0) weft::bulk_load(s, T0 + 1, 256, bar);", "misaligned-copy"),
    Rule("a load past the end of its source", INIT % 1 + "if (t == 0) weft::bulk_load(s, T0 + 240, 256, bar);", "out-of-bounds"),
    Rule("a load past the end of shared memory", INIT % 1 + "if (t == 0) weft::bulk_load(s + 2040, T0, 256, bar);", "out-of-bounds"),
    Rule("a store, fenced and waited for", FILL + "weft::fence_proxy_async(); weft::block_sync();" + STORE % "weft::bulk_wait<0>();"),
    Rule("a store without the fence", FILL + "weft::block_sync();" + STORE % "weft::bulk_wait<0>();", "missing-proxy-fence"),
    Rule("a fence by one thread after the barrier covers what it knows", FILL + "weft::block_sync(); if (t == 0) weft::fence_proxy_async();" + STORE % "weft::bulk_wait<0>();"),
    Rule("a store whose source is reused", FILL + "weft::fence_proxy_async(); weft::block_sync();" + STORE % "weft::store_shared(s, 1.f); weft::bulk_wait<0>();", "data-race"),
    Rule("a store whose source is reused after it was read", FILL + "weft::fence_proxy_async(); weft::block_sync();" + STORE % "weft::bulk_wait_read<0>(); weft::store_shared(s, 1.f); weft::bulk_wait<0>();"),
    Rule("reading a store's destination too early", FILL + "weft::fence_proxy_async(); weft::block_sync();" + STORE % "weft::bulk_wait_read<0>(); weft::load_global(T1);", "data-race"),
    Rule("reading a store's destination", FILL + "weft::fence_proxy_async(); weft::block_sync();" + STORE % "weft::bulk_wait<0>(); weft::load_global(T1);"),
    Rule("a store never waited for", FILL + "weft::fence_proxy_async(); weft::block_sync();" + STORE % "", "exit-with-pending-store"),
    Rule("a store never committed", FILL + "weft::fence_proxy_async(); weft::block_sync();" + (STORE % "").replace("weft::bulk_commit();", ""), "exit-with-uncommitted-store"),
    Rule("the older of two stores", FILL + "weft::fence_proxy_async(); weft::block_sync(); if (t == 0 && b == 0) { weft::bulk_store(T1, s, 128); weft::bulk_commit(); weft::bulk_store(T1 + 32, s + 32, 128); weft::bulk_commit(); weft::bulk_wait_read<1>(); weft::store_shared(s, 1.f); weft::bulk_wait_read<0>(); weft::store_shared(s + 32, 1.f); }"),
    Rule("the newer of two stores", FILL + "weft::fence_proxy_async(); weft::block_sync(); if (t == 0 && b == 0) { weft::bulk_store(T1, s, 128); weft::bulk_commit(); weft::bulk_store(T1 + 32, s + 32, 128); weft::bulk_commit(); weft::bulk_wait_read<1>(); weft::store_shared(s + 32, 1.f); weft::bulk_wait_read<0>(); }", "data-race"),
    Rule("cp_async, own bytes", "weft::cp_async<4>(s + t, T0 + t); weft::cp_async_commit(); weft::cp_async_wait<0>(); weft::store_global(T1 + b * 64 + t, weft::load_shared(s + t));"),
    Rule("cp_async, not waited for", "weft::cp_async<4>(s + t, T0 + t); weft::cp_async_commit(); weft::load_shared(s + t); weft::cp_async_wait<0>();", "data-race"),
    Rule("cp_async, others' bytes", "weft::cp_async<4>(s + t, T0 + t); weft::cp_async_commit(); weft::cp_async_wait<0>(); weft::block_sync();" + READ_FAR),
    Rule("cp_async, others' bytes without a barrier", "weft::cp_async<4>(s + t, T0 + t); weft::cp_async_commit(); weft::cp_async_wait<0>();" + READ_FAR, "data-race uninitialised-read?"),
    Rule("cp_async, a barrier before the wait", "weft::cp_async<4>(s + t, T0 + t); weft::cp_async_commit(); weft::block_sync(); weft::cp_async_wait<0>();" + READ_FAR, "data-race"),
    Rule("cp_async, the older group", "weft::cp_async<4>(s + t, T0 + t); weft::cp_async_commit(); weft::cp_async<4>(s + 64 + t, T0 + t); weft::cp_async_commit(); weft::cp_async_wait<1>(); weft::load_shared(s + t); weft::cp_async_wait<0>(); weft::load_shared(s + 64 + t);"),
    Rule("cp_async, the newer group", "weft::cp_async<4>(s + t, T0 + t); weft::cp_async_commit(); weft::cp_async<4>(s + 64 + t, T0 + t); weft::cp_async_commit(); weft::cp_async_wait<1>(); weft::load_shared(s + 64 + t); weft::cp_async_wait<0>();", "data-race"),
    Rule("cp_async, left behind", "weft::cp_async<4>(s + t, T0 + t);", "exit-with-pending-copy", dict(copy_timing="late")),
    Rule("cp_async, misaligned", "weft::cp_async<16>(s + t, T0 + t);", "misaligned-copy exit-with-pending-copy?"),
    Rule("cp_async, no source when not valid", "weft::cp_async<4>(s + t, T0 + 100000, false); weft::cp_async_commit(); weft::cp_async_wait<0>(); weft::load_shared(s + t);"),
]  # fmt: skip

COLLECTIVES = [
    Rule("lanes at different barriers", "if (t % 2) weft::block_sync(); else weft::block_sync();".replace("else", "\nelse"), "divergent-barrier"),
    Rule("a bad barrier", "weft::named_sync(16, 64);", "bad-barrier"),
    Rule("a barrier of half a warp", "weft::named_sync(1, 48);", "bad-barrier"),
    Rule("a barrier of more than the block", "weft::named_sync(1, 96);", "bad-barrier"),
    Rule("two counts", "if (t < 32) weft::named_sync(1, 64); else weft::named_sync(1, 32);", "barrier-count-mismatch? deadlock?"),
    Rule("a second arrival before the barrier opens", "if (t < 32) { weft::named_arrive(1, 64); weft::named_arrive(1, 64); } else { for (int i = 0; i < 3; i++) weft::warp_sync(); weft::named_sync(1, 64); }", "barrier-overrun deadlock?", dict(seed=None)),
    Rule("one lane returns before a barrier", "if (t == 40) return; weft::block_sync();", "exit-before-barrier"),
    Rule("a warp returns before a barrier of the rest", "if (t >= 32) return; weft::block_sync();"),
    Rule("one lane returns before a named barrier", "if (t == 40) return; weft::named_sync(1, 64);", "exit-before-barrier"),
    Rule("a warp may return early", "if (t >= 32) return; weft::named_sync(1, 32);"),
    Rule("a shuffle after an early return", "if (t == 40) return; weft::shuffle_xor(1.f, 1);", "exited-lanes-in-mask"),
    Rule("a shuffle in a partial warp", "weft::shuffle_xor(1.f, 1);", "exited-lanes-in-mask", dict(threads=48)),
    Rule("lanes in different shuffles", "if (t % 2) weft::shuffle_xor(1.f, 1); else weft::shuffle_down(1.f, 1);".replace("else", "\nelse"), "divergent-collective"),
    Rule("a mask that does not name the lane", "weft::warp_sync(0xfffffffeu);", "bad-warp-mask deadlock?", dict(threads=32, seed=None)),
    Rule("halves of a warp synchronise apart", "if (t % 32 < 16) weft::warp_sync(0xffffu); else weft::warp_sync(0xffff0000u);"),
    Rule("setmaxnreg out of range", "weft::setmaxnreg_dec<20>();", "bad-setmaxnreg"),
    Rule("setmaxnreg where nothing says what a thread starts with", "weft::setmaxnreg_dec<40>();", "bad-setmaxnreg", dict(threads=128)),
    Rule("setmaxnreg of a warpgroup", "weft::setmaxnreg_dec<40>();", "", dict(registers_per_thread=128, threads=128)),
    Rule("setmaxnreg to more than owned", "weft::setmaxnreg_dec<200>();", "bad-setmaxnreg", dict(registers_per_thread=128, threads=128)),
    Rule("one leader per warp", "if (weft::elect()) weft::atomic_add(flags, 1u);"),
]  # fmt: skip

ASYNC_READY = INIT % 1 + "if (t == 0) weft::mbarrier_arrive_expect_tx(bar, 256); weft::fence_mbarrier_init(); weft::cluster_arrive_relaxed(); weft::cluster_wait(); "
STORE_ASYNC = ASYNC_READY + "weft::store_async_remote(s + t, weft::cluster_rank() ^ 1, (float)t, bar); %s weft::load_shared(s + t); %s"
CLUSTERS = [
    Rule("remote writes, ordered", "weft::cluster_sync(); weft::store_shared_remote(s + t, weft::cluster_rank() ^ 1, (float)t); weft::cluster_sync(); weft::load_shared(s + t);", "", CLUSTER),
    Rule("remote writes, not ordered", "weft::cluster_sync(); weft::store_shared_remote(s + t, weft::cluster_rank() ^ 1, (float)t); weft::block_sync(); weft::load_shared(s + t); weft::cluster_sync();", "data-race uninitialised-read?", CLUSTER),
    Rule("remote reads, ordered", FILL + "weft::cluster_sync(); weft::store_global(T1 + b * 64 + t, weft::load_shared_remote(s + t, weft::cluster_rank() ^ 1)); weft::cluster_sync();", "", CLUSTER),
    Rule("a block exits while another reads its memory", FILL + "weft::cluster_sync(); if (weft::cluster_rank() == 0) { for (int i = 0; i < 3; i++) weft::block_sync(); weft::load_shared_remote(s + t, 1); }", "remote-access-after-exit", dict(cluster=(2, 1, 1), seed=None)),
    Rule("asynchronous stores, awaited", STORE_ASYNC % ("weft::mbarrier_wait_phase(bar, 0);", ""), "", CLUSTER),
    Rule("asynchronous stores, not awaited", STORE_ASYNC % ("", "weft::mbarrier_wait_phase(bar, 0);"), "data-race uninitialised-read?", CLUSTER),
    Rule("asynchronous stores counted by a barrier whose init is not fenced", (INIT % 1).replace("weft::fence_mbarrier_init();", "") + "if (t == 0) weft::mbarrier_arrive_expect_tx(bar, 256); weft::cluster_sync(); weft::store_async_remote(s + t, weft::cluster_rank() ^ 1, 1.f, bar); weft::mbarrier_wait_phase(bar, 0);", "missing-proxy-fence", CLUSTER),
    Rule("a block exits before what it is sent", ASYNC_READY + "weft::store_async_remote(s + t, weft::cluster_rank() ^ 1, 1.f, bar);", "exit-with-pending-load remote-access-after-exit", CLUSTER | dict(copy_timing="late")),
    Rule("asynchronous stores publish their own bytes only", ASYNC_READY + "weft::store_shared_remote(s + t, weft::cluster_rank() ^ 1, 1.f); weft::store_async_remote(s + 512 + t, weft::cluster_rank() ^ 1, 1.f, bar); weft::mbarrier_wait_phase(bar, 0); weft::load_shared(s + t); weft::cluster_sync();", "data-race uninitialised-read?", CLUSTER),
    Rule("what was read before asynchronous stores is over when their bytes have come", (READ_THEN := FILL + "weft::cluster_sync();" + ASYNC_READY + "weft::store_global(T1 + b * 64 + t, weft::load_shared(s + t)); %s weft::store_async_remote(s + 512 + t, weft::cluster_rank() ^ 1, 1.f, bar); %s weft::mbarrier_wait_phase(bar, 0); weft::store_shared_remote(s + t, weft::cluster_rank() ^ 1, 2.f); weft::cluster_sync();") % ("", ""), "", CLUSTER),
    Rule("what is read behind asynchronous stores may still be under way", READ_THEN % ("", "weft::store_global(T1 + b * 64 + t, weft::load_shared(s + t));"), "data-race", CLUSTER),
    Rule("a relaxed arrive orders no memory", FILL + "weft::cluster_arrive_relaxed(); weft::cluster_wait(); weft::load_shared_remote(s + t, weft::cluster_rank() ^ 1); weft::cluster_sync();", "data-race uninitialised-read?", CLUSTER),
    Rule("no such rank", "weft::load_shared_remote(s + t, 2);", "out-of-bounds", CLUSTER),
    Rule("arrive and wait apart", FILL + "weft::cluster_arrive(); weft::warp_sync(); weft::cluster_wait(); weft::load_shared_remote(s + t, weft::cluster_rank() ^ 1); weft::cluster_sync();", "", CLUSTER),
]  # fmt: skip

REGISTERS = [
    Rule("a register array, written first", "weft::Array<float, 4> a; a.fill(1.f); a[2] += 1.f; weft::store_global(T1 + b * 64 + t, a[2]);"),
    Rule("a register that nobody wrote", "weft::Array<float, 4> a; a[1] = 1.f; weft::store_global(T1 + b * 64 + t, a[2]);", "uninitialised-register"),
    Rule("adding to a register that nobody wrote", "weft::Array<float, 4> a; a[1] += 1.f;", "uninitialised-register"),
    Rule("converting a register that nobody wrote", "weft::Array<float, 4> a; weft::Array<weft::bf16, 4> c; weft::convert_vector<4>(c, 0, a, 0);", "uninitialised-register"),
    Rule("storing a register that nobody wrote", "weft::Array<float, 4> a; a[0] = a[1] = a[2] = 1.f; weft::store_global_vector<4>(T1 + (b * 64 + t) * 4, a, 0);", "uninitialised-register"),
    Rule("an index outside", "weft::Array<float, 4> a; a[t % 5] = 1.f;", "bad-array-index"),
    Rule("a vector outside", "weft::Array<float, 4> a; weft::load_global_vector<4>(a, n, T0);", "bad-array-index", dict(n=1)),
]  # fmt: skip

ALL = SHARED + GLOBAL + MBARRIERS + COPIES + COLLECTIVES + CLUSTERS + REGISTERS


@pytest.mark.parametrize("rule", ALL, ids=lambda r: r.claim)
def test_rule(rule: Rule) -> None:
    own = {k: v for k, v in rule.options.items() if k in ("seed", "copy_timing", "schedule") and v is not None}
    rest = {k: v for k, v in rule.options.items() if k not in ("seed", "copy_timing", "schedule")}
    for schedule in [own] if own.get("seed", 0) is None or "seed" in rule.options else [{**s, **own} for s in SCHEDULES]:
        report, _ = run_rule(rule.body, **schedule, **rest)
        needed = {k for k in rule.kinds.split() if not k.endswith("?")}
        allowed = {k.rstrip("?") for k in rule.kinds.split()}
        assert needed <= report.kinds() <= allowed, f"{schedule}:\n" + "\n".join(f.text() for f in report.findings)
