# ruff: noqa: E501  (a kernel is one line of a table)
"""What primitives return, as kernels of a few lines with the values they must give. Run in the emulator and on a GPU.

Each body fills T1[0..63] (block 0) and T1[64..127] (block 1); `expected` is a function of the thread t and the block b.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

PUT = "weft::store_global(T1 + b * 64 + t, (float)(%s));"


@dataclass(frozen=True)
class Value:
    claim: str
    body: str
    expected: Callable[[int, int], float]
    cluster: tuple[int, int, int] = (1, 1, 1)
    needs_sm90: bool = False


VALUES = [
    Value("shuffle_xor of float", PUT % "weft::shuffle_xor((float)t, 5)", lambda t, b: t ^ 5),
    Value("shuffle_xor of double", PUT % "weft::shuffle_xor(t + 0.5, 16)", lambda t, b: (t ^ 16) + 0.5),
    Value("shuffle_down stops at the warp's end", PUT % "weft::shuffle_down(t, 3)", lambda t, b: t + 3 if t % 32 < 29 else t),
    Value("shuffle_down of long long", PUT % "(float)(weft::shuffle_down((long long)t << 40, 1) >> 40)", lambda t, b: t + 1 if t % 32 < 31 else t),
    Value("shuffle_index", PUT % "weft::shuffle_index((short)-t, 7)", lambda t, b: -(t // 32 * 32 + 7)),
    Value("shuffle_index of bf16", PUT % "weft::convert<float>(weft::shuffle_index(weft::convert<weft::bf16>((float)t), (t + 1) % 32))", lambda t, b: t // 32 * 32 + (t + 1) % 32),
    Value("shuffle_xor of a byte", PUT % "weft::shuffle_xor((unsigned char)(t + 200), 1)", lambda t, b: ((t ^ 1) + 200) % 256),
    Value("shuffle_xor of bool", PUT % "weft::shuffle_xor(t % 2 == 0, 1)", lambda t, b: t % 2),
    Value("ballot", PUT % "weft::ballot(t % 3 == 0) == (t < 32 ? 0x49249249u : 0x92492492u)", lambda t, b: 1),
    Value("lane and warp", PUT % "weft::lane() * 100 + weft::warp_of(t)", lambda t, b: t % 32 * 100 + t // 32),
    Value("one leader", "unsigned leaders = weft::ballot(weft::elect());" + PUT % "leaders != 0 && (leaders & (leaders - 1)) == 0", lambda t, b: 1, needs_sm90=True),
    Value("indices", PUT % "threadIdx.x + 1000 * blockIdx.x + 100000 * gridDim.x + blockDim.x", lambda t, b: t + 1000 * b + 200000 + 64),
    Value("atomic_add of int", "if (t < 5) weft::atomic_add((int*)flags + b, -2); weft::block_sync();" + PUT % "weft::load_global((int*)flags + b)", lambda t, b: -10),
    Value("atomic_add of float", "weft::atomic_add(T1 + b * 64 + t / 2 * 2, 1.5f); if (t % 2) weft::store_global(T1 + b * 64 + t, 3.f);", lambda t, b: 3),
    Value("atomic_add of double", "double* d = (double*)(flags + 8) + b; weft::atomic_add(d, 0.25); weft::block_sync();" + PUT % "weft::load_global(d)", lambda t, b: 16),
    Value("atomic_add of 64 bits", "unsigned long long* d = (unsigned long long*)(flags + 8) + b; weft::atomic_add(d, 1ull << 33); weft::block_sync();" + PUT % "(weft::load_global(d) >> 33)", lambda t, b: 64),
    Value("atomic_add on shared memory", "if (t == 0) weft::store_shared((unsigned*)s, 0u); weft::block_sync(); weft::atomic_add((unsigned*)s, 2u); weft::block_sync();" + PUT % "weft::load_shared((unsigned*)s)", lambda t, b: 128),
    Value("vectors of 2 to 16 bytes", "weft::Array<float, 8> a; weft::load_global_vector<4>(a, 2, T0 + t / 4 * 4); weft::load_global_vector<2, weft::Cache::streaming>(a, 6, T0 + t * 2); weft::store_shared_vector<2>(s + t * 2, a, 6); weft::load_shared_vector<2>(a, 0, s + t * 2);" + PUT % "a[2 + t % 4] + 1000 * a[1]", lambda t, b: t + 1000 * (2 * t + 1)),
    Value("vectors of bf16", "weft::Array<weft::bf16, 8> a; weft::Array<float, 8> c; for (int i = 0; i < 8; i++) a[i] = weft::convert<weft::bf16>((float)(t % 8 + i)); weft::store_shared_vector<8>((weft::bf16*)s + t * 8, a, 0); weft::load_shared_vector<8>(a, 0, (weft::bf16*)s + t * 8); weft::convert_vector<8>(c, 0, a, 0); weft::convert_vector<6>(a, 2, c, 0); weft::convert_vector<8>(c, 0, a, 0);" + PUT % "c[1] * 100 + c[7]", lambda t, b: (t % 8 + 1) * 100 + t % 8 + 5),
    Value("bytes beside each other", "signed char* bytes = (signed char*)(s + 256); weft::Array<signed char, 4> a; for (int i = 0; i < 4; i++) a[i] = (signed char)(t - 40 + i); weft::store_shared_vector<4>(bytes + t * 4, a, 0); weft::load_shared_vector<2>(a, 0, bytes + t * 4 + 2);" + PUT % "a[1]", lambda t, b: t - 37),
    Value("cp_async zero fill", "weft::store_shared(s + t, 5.f); weft::cp_async<4>(s + t, T0 + t, t % 2); weft::cp_async_commit(); weft::cp_async_wait<0>();" + PUT % "weft::load_shared(s + t)", lambda t, b: t if t % 2 else 0),
    Value("cluster rank and size", PUT % "weft::cluster_rank() * 10 + weft::cluster_size()", lambda t, b: b * 10 + 2, cluster=(2, 1, 1), needs_sm90=True),
    Value("remote shared memory", "weft::cluster_sync(); weft::store_shared_remote((short*)s + t, weft::cluster_rank() ^ 1, (short)(t + 7 * b)); weft::cluster_sync();" + PUT % "weft::load_shared((short*)s + t) + 1000 * weft::load_shared_remote((short*)s + t, weft::cluster_rank() ^ 1)" + "weft::cluster_sync();", lambda t, b: t + 7 * (1 - b) + 1000 * (t + 7 * b), cluster=(2, 1, 1), needs_sm90=True),
    Value("stores to another block that its barrier counts", "if (t == 0) { weft::mbarrier_init(bar, 1); weft::mbarrier_arrive_expect_tx(bar, 64 * 12); weft::fence_mbarrier_init(); } weft::cluster_arrive_relaxed(); weft::cluster_wait(); weft::store_async_remote((double*)s + t, weft::cluster_rank() ^ 1, t + 0.5 + b, bar); weft::store_async_remote((int*)s + 128 + t, weft::cluster_rank() ^ 1, (int)t * 1000, bar); weft::mbarrier_wait_phase(bar, 0);" + PUT % "weft::load_shared((double*)s + t) + weft::load_shared((int*)s + 128 + t)", lambda t, b: t * 1001 + 1.5 - b, cluster=(2, 1, 1), needs_sm90=True),
]  # fmt: skip
