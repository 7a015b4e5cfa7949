"""Measures what the cost model uses of a chip (`weft.arch.Latencies`) on the chip at hand, in less than two minutes, and prints the record.

    python bench/chip.py [OUT.json]

Latencies are chains: each step needs the one before, and a clock is read before and after. Rates are medians of whole launches. Read first: `FIGURES`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from measure import about, copy_us, parser

from weft.arch import Arch, arch_of_device
from weft.device.library import translation_unit
from weft.runtime.driver import LoadedKernel, load_kernel
from weft.runtime.nvrtc import compile_cubin

STEPS = 256
FEW_SMS = 4
CHASED_BYTES = {"l2": 8 << 20, "dram": 512 << 20}
"""What a chain of loads runs through: less than half of an L2, and more than any."""
TEXT = """
extern "C" __global__ void empty(long long* out) {}

extern "C" __global__ void block_barrier(long long* out) {
  __syncthreads();
  long long start = clock64();
  for (int i = 0; i < STEPS; ++i) { asm volatile("bar.sync 0;" ::: "memory"); }
  if (threadIdx.x == 0) out[0] = clock64() - start;
}

extern "C" __global__ void shuffle(long long* out) {
  int value = threadIdx.x;
  long long start = clock64();
  #pragma unroll 32
  for (int i = 0; i < STEPS; ++i) { value = __shfl_xor_sync(0xffffffffu, value, 1) + 1; }
  if (threadIdx.x == 0) { out[0] = clock64() - start; out[1] = value; }
}

extern "C" __global__ void shared_chain(long long* out) {
  __shared__ int next[1024];
  for (int i = threadIdx.x; i < 1024; i += blockDim.x) next[i] = (i + 33) % 1024;
  __syncthreads();
  int at = threadIdx.x;
  long long start = clock64();
  #pragma unroll 32
  for (int i = 0; i < STEPS; ++i) { at = next[at]; }
  if (threadIdx.x == 0) { out[0] = clock64() - start; out[1] = at; }
}

extern "C" __global__ void memory_chain(long long* out, const long long* next) {
  long long at = out[1];  // where the launch before came to: nothing there is in a cache
  long long start = clock64();
  for (int i = 0; i < STEPS; ++i) { at = __ldcg(next + at); }
  out[0] = clock64() - start; out[1] = at;
}

extern "C" __global__ void arithmetic(long long* out, float scale) {
  float a = threadIdx.x, b = a + 1, c = a + 2, d = a + 3;
  __syncthreads();
  long long start = clock64();
  #pragma unroll 16
  for (int i = 0; i < STEPS; ++i) { a = a * scale + 1.f; b = b * scale + 1.f; c = c * scale + 1.f; d = d * scale + 1.f; }
  __syncthreads();
  if (threadIdx.x == 0) { out[0] = clock64() - start; }
  if (a + b + c + d == 0.5f) out[1] = 1;
}

extern "C" __global__ void read_all(long long* out, const int4* from, long long count, long long times) {
  int4 sum = make_int4(0, 0, 0, 0);
  for (long long n = 0; n < times; ++n)
  #pragma unroll 4
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x) {
    int4 v = __ldcg(from + i);
    sum.x ^= v.x; sum.y ^= v.y; sum.z ^= v.z; sum.w ^= v.w;
  }
  if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x12345678) out[1] = 1;
}

extern "C" __global__ void meetings(long long* out, int* barrier, long long count) {
  for (long long i = 0; i < count; ++i) {
    __syncthreads();
    if (threadIdx.x == 0) weft::meet_grid(barrier + 2 * (i & 15));
    __syncthreads();
  }
}

extern "C" __global__ void add_rows(long long* out, float* rows, long long count, long long times) {
  unsigned row = (blockIdx.x * blockDim.x + threadIdx.x) / 64;
  for (long long n = 0; n < times; ++n) {
    row = row * 1664525u + 1013904223u;  // any row, the same for 64 threads
    atomicAdd(rows + (row >> 8) % (unsigned)count * 64 + threadIdx.x % 64, 1.f);
  }
}

extern "C" __global__ void add_to_one(long long* out, float* rows, long long times) {
  for (long long n = 0; n < times; ++n) atomicAdd(rows + threadIdx.x % 32, 1.f);
}
"""
CLUSTER_TEXT = """
extern "C" __global__ void cluster_barrier(long long* out) {
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  long long start = clock64();
  for (int i = 0; i < STEPS; ++i) { asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory"); }
  if (threadIdx.x == 0 && blockIdx.x == 0) out[0] = clock64() - start;
}

extern "C" __global__ void cluster_relaxed(long long* out) {
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  long long start = clock64();
  for (int i = 0; i < STEPS; ++i) { asm volatile("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;" ::: "memory"); }
  if (threadIdx.x == 0 && blockIdx.x == 0) out[0] = clock64() - start;
}
"""


BULK_TEXT = """
extern "C" __global__ void bulk_chain(long long* out, const long long* next) {
  __shared__ alignas(16) long long data[2];
  __shared__ alignas(8) unsigned long long barrier;
  unsigned to = (unsigned)__cvta_generic_to_shared(data), at_barrier = (unsigned)__cvta_generic_to_shared(&barrier), parity = 0;
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(at_barrier) : "memory");
  long long at = out[1];
  long long start = clock64();
  for (int i = 0; i < STEPS; ++i, parity ^= 1) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16;" :: "r"(at_barrier) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 16, [%2];"
                 :: "r"(to), "l"(next + at), "r"(at_barrier) : "memory");
    for (unsigned done = 0; !done;)
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                   : "=r"(done) : "r"(at_barrier), "r"(parity) : "memory");
    at = *(volatile long long*)data;
  }
  out[0] = clock64() - start; out[1] = at;
}
"""


class Bench:
    """Kernels of this file on one device."""

    def __init__(self) -> None:
        self.arch: Arch = arch_of_device(0)
        text = (TEXT + CLUSTER_TEXT * (self.arch.max_cluster_blocks > 1) + BULK_TEXT * self.arch.has_tma).replace("STEPS", str(STEPS))
        self.text = translation_unit(text, ("grid",))
        self.loaded: dict[str, LoadedKernel] = {}
        self.out = torch.zeros(8, dtype=torch.int64, device="cuda")

    def kernel(self, name: str) -> LoadedKernel:
        if name not in self.loaded:
            self.loaded[name] = load_kernel(compile_cubin(self.text, name, self.arch.nvrtc_target).cubin, name, 0)
        return self.loaded[name]

    def run(
        self, name: str, grid: int, block: int, tensors: Sequence[torch.Tensor] = (), numbers: Sequence[tuple[str, int | float]] = (), shared_bytes: int = 0,
        cluster: int = 0, cooperative: bool = False,
    ) -> Callable[[], None]:  # fmt: skip
        """Return a launch."""
        slots = [("pointer", n) for n in range(1 + len(tensors))] + [("scalar", kind, value) for kind, value in numbers]
        record = self.kernel(name).record((grid,), (block,), shared_bytes, slots, cluster=(cluster, 1, 1) if cluster else None, cooperative=cooperative)  # type: ignore[arg-type]
        pointers = [self.out.data_ptr(), *(t.data_ptr() for t in tensors)]
        return lambda: record.launch(pointers, torch.cuda.current_stream().cuda_stream)

    def clocks(self, *given: object, **more: object) -> float:
        """Return the clocks of a step: the median of several launches."""
        launch, found = self.run(*given, **more), []  # type: ignore[arg-type]
        for _ in range(9):
            launch()
            found.append(int(self.out[0]))
        return statistics.median(found[2:]) / STEPS

    def us(self, launch: Callable[[], None], is_flushed: bool = True) -> float:
        """Return the median time of a launch, as `medians_in_turn` takes it."""
        flushed, times = torch.empty(256 << 20, dtype=torch.uint8, device="cuda"), []
        for _ in range(30):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            if is_flushed:
                flushed.zero_()
            start.record()
            launch()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e3)
        return statistics.median(times)


def line_through(points: dict[int, float]) -> tuple[float, float]:
    """Return offset and slope of the line through points, by least squares."""
    xs, ys = list(points), list(points.values())
    mx, my = statistics.fmean(xs), statistics.fmean(ys)
    slope = sum((x - mx) * (y - my) for x, y in zip(xs, ys)) / sum((x - mx) ** 2 for x in xs)
    return my - slope * mx, slope


def chain_through(count_bytes: int) -> torch.Tensor:
    """Return indices in which a walk visits memory in a random order, one line of 128 bytes after the other."""
    lines = count_bytes // 128
    order = torch.randperm(lines, device="cuda")
    chain = torch.zeros(lines * 16, dtype=torch.int64, device="cuda")
    chain[order * 16] = order.roll(-1) * 16
    return chain


def measured() -> tuple[dict[str, float], dict[str, object]]:
    """Return the figures by their names in the record, and what they were made from."""
    bench = Bench()
    arch, sms = bench.arch, bench.arch.sm_count
    clocks_per_ns = arch.sm_clock_khz * 1e-6
    empty = bench.us(bench.run("empty", 1, 32))
    together = bench.us(bench.run("empty", sms, 512, cooperative=True))
    barrier = {warps: bench.clocks("block_barrier", 1, warps * 32) for warps in (2, 4, 8, 16, 32)}
    sizes = [size for size in (2, 4, 8, 16) if size <= arch.max_cluster_blocks and arch.max_cluster_blocks > 1]
    clusters = {size: bench.clocks("cluster_barrier", size, 256, cluster=size) for size in sizes}
    relaxed = {size: bench.clocks("cluster_relaxed", size, 256, cluster=size) for size in sizes}
    counters = torch.zeros(64, dtype=torch.int32, device="cuda")
    meetings = {}
    for blocks in (sms // 2, sms, 2 * sms, 4 * sms):
        few, many = (bench.us(bench.run("meetings", blocks, 256, [counters], [("long long", n)], cooperative=True)) for n in (16, 116))
        meetings[blocks] = (many - few) / 100 * 1e3
    latencies, bulk = {}, 0.0
    for name, count in CHASED_BYTES.items():
        chain = chain_through(count)
        if name == "l2":  # brought there first
            bench.us(bench.run("read_all", sms, 512, [chain], [("long long", chain.numel() // 2), ("long long", 1)]), False)
        bench.out.zero_()
        latencies[name] = bench.clocks("memory_chain", 1, 1, [chain])
        if name == "l2" and arch.has_tma:
            bulk = bench.clocks("bulk_chain", 1, 1, [chain]) - latencies[name]
        del chain
    waves = {blocks: bench.us(bench.run("empty", blocks * sms, 128)) for blocks in (200, 1200)}
    rates = {}
    for name, count in (("l2", 16 << 20), ("dram", 1 << 30)):
        source = torch.zeros(count // 8, dtype=torch.int64, device="cuda")
        once, often = (bench.us(bench.run("read_all", sms * 4, 512, [source], [("long long", count // 16), ("long long", n)]), False) for n in (1, 21))
        rates[name] = 20 * count / (often - once) * 1e6
        if name == "dram":  # by few multiprocessors, of which each has all that it can take
            few = bench.us(bench.run("read_all", FEW_SMS, 1024, [source], [("long long", count // 256), ("long long", 1)]), False)
            rates["sm"] = count / 16 / FEW_SMS / (few - empty) * 1e6
        del source
    barrier_clocks, barrier_warp_clocks = line_through(barrier)
    cluster_clocks, cluster_block_clocks = line_through(clusters) if clusters else (0.0, 0.0)
    grid_ns, grid_block_ns = line_through(meetings)
    figures = {
        "launch_ns": empty * 1e3,
        "cooperative_launch_ns": together * 1e3,
        "dram_latency_ns": latencies["dram"] / clocks_per_ns,
        "l2_latency_ns": latencies["l2"] / clocks_per_ns,
        "bulk_latency_ns": bulk / clocks_per_ns,
        "l2_bytes_per_s": rates["l2"],
        "block_launch_ns": (waves[1200] - waves[200]) / 1000 * 1e3,
        "shared_latency_clocks": bench.clocks("shared_chain", 1, 32),
        "shuffle_latency_clocks": bench.clocks("shuffle", 1, 32) - arithmetic_latency(bench),
        "barrier_clocks": barrier_clocks,
        "barrier_warp_clocks": barrier_warp_clocks,
        "cluster_barrier_clocks": cluster_clocks,
        "cluster_block_clocks": cluster_block_clocks,
        "grid_meeting_ns": grid_ns,
        "grid_block_ns": grid_block_ns,
        **atomic_rates(bench),
    }
    more: dict[str, object] = {
        "arithmetic_latency_clocks": arithmetic_latency(bench),
        "fma_per_clock_and_scheduler": 4 * 1024 / 32 / 4 / bench.clocks("arithmetic", 1, 1024, (), [("float", 1.0)]),
        "copy_bytes_per_s": (1 << 30) / copy_us(1 << 30, "cuda") * 1e6, "read_bytes_per_s": rates["dram"],
        "sm_bytes_per_s": rates["sm"], "barriers": barrier, "clusters": clusters,
        "clusters_without_fence": relaxed, "meetings": meetings,
    }  # fmt: skip
    return figures, more


def atomic_rates(bench: Bench) -> dict[str, float]:
    """Return sectors per second of additions to any of 100,000 rows of 64 floats, and the time between two additions to one row."""
    sms, rows = bench.arch.sm_count, torch.zeros(100_000 * 64, device="cuda")
    many, few = (bench.us(bench.run("add_rows", sms * 4, 512, [rows], [("long long", 100_000), ("long long", n)]), False) for n in (110, 10))
    long, short = (bench.us(bench.run("add_to_one", sms, 128, [rows], [("long long", n)]), False) for n in (110, 10))
    sectors, additions = 100 * sms * 4 * 512 * 4 / 32, 100 * sms * 128 / 32
    return {"atomic_sectors_per_s": sectors / (many - few) * 1e6, "atomic_repeat_ns": (long - short) / additions * 1e3}


def arithmetic_latency(bench: Bench) -> float:
    """Clocks from one multiplication and addition to the next that needs it: of four chains in one warp, which a scheduler issues in turn."""
    return max(4.0, bench.clocks("arithmetic", 1, 32, (), [("float", 1.0)]))


def main() -> None:
    a = parser(__doc__).parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU: the figures of a chip are measured on it")
    figures, more = measured()
    print(f"{arch_of_device(0).name}:")
    for name, value in figures.items():
        print(f"    {name}={value:.4g},")
    print(json.dumps(more, indent=1))
    if a.out:
        Path(a.out).write_text(json.dumps({**about("cuda"), "figures": figures, "more": more}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
