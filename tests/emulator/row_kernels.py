"""Two kernels written with the primitives, as code generation writes them, and how to run them in the emulator.

`SOFTMAX`: one block per row. `RMSNORM`: persistent and warp-specialized; two async roles feed two compute groups through a
ring of stages, the result leaves by bulk stores. Mistakes are planted by replacing text (`planted`).
"""

from __future__ import annotations

import functools

import numpy as np

from weft.device.library import translation_unit
from weft.emulator import Buffer, EmulatedKernel, LaunchReport, Scalar

COLS, STAGES = 1024, 3

SOFTMAX = r"""
extern "C" __global__ void __launch_bounds__(128) softmax(const weft::bf16* __restrict__ T0, weft::bf16* __restrict__ T1) {
  constexpr int COLS = @COLS, VECTORS = COLS / (128 * 8);
  float* partial = (float*)weft::dynamic_shared();      // [0..3] maxima, [4..7] sums
  WEFT_NAME(partial, 32, "partial");
  const int t = threadIdx.x, warp = t / 32;
  const weft::bf16* row = T0 + (long long)blockIdx.x * COLS;
  weft::Array<weft::bf16, 8> packed;
  weft::Array<float, VECTORS * 8> T2;
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
    weft::load_global_vector<8>(packed, 0, row + (i * 128 + t) * 8);
    weft::convert_vector<8>(T2, i * 8, packed, 0);
  }
  float m = T2[0];
#pragma unroll
  for (int i = 1; i < VECTORS * 8; i++) m = T2[i] > m ? T2[i] : m;
#pragma unroll
  for (int o = 16; o; o /= 2) { const float other = weft::shuffle_xor(m, o); m = other > m ? other : m; }
  if (weft::lane() == 0) weft::store_shared(partial + warp, m);
  weft::block_sync();
  for (int w = 0; w < 4; w++) { const float other = weft::load_shared(partial + w); m = other > m ? other : m; }
  float s = 0.f;
#pragma unroll
  for (int i = 0; i < VECTORS * 8; i++) { T2[i] = exponential(T2[i] - m); s += T2[i]; }
#pragma unroll
  for (int o = 16; o; o /= 2) s += weft::shuffle_xor(s, o);
  if (weft::lane() == 0) weft::store_shared(partial + 4 + warp, s);
  weft::block_sync();
  s = 0.f;
  for (int w = 0; w < 4; w++) s += weft::load_shared(partial + 4 + w);
  const float inverse = 1.f / s;
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
#pragma unroll
    for (int j = 0; j < 8; j++) T2[i * 8 + j] *= inverse;
    weft::convert_vector<8>(packed, 0, T2, i * 8);
    weft::store_global_vector<8>(T1 + (long long)blockIdx.x * COLS + (i * 128 + t) * 8, packed, 0);
  }
}
"""

# Branch-free, so that the host compiler vectorizes it; about 1 ulp.
EXPONENTIAL = r"""
#if defined(WEFT_EMULATOR)
WEFT_DEVICE float exponential(float x) {
  float c = x * 1.4426950408889634f;
  c = c < -126.f ? -126.f : c;
  const float n = __builtin_rintf(c), f = c - n;
  float p = 1.5403530e-4f;
  p = p * f + 1.3333558e-3f; p = p * f + 9.6181291e-3f; p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f; p = p * f + 6.9314718e-1f; p = p * f + 1.f;
  return p * weft::bit_cast<float>((unsigned)((int)n + 127) << 23);
}
WEFT_DEVICE float inverse_root(float x) { return 1.f / __builtin_sqrtf(x); }
#else
WEFT_DEVICE float exponential(float x) { return __expf(x); }
WEFT_DEVICE float inverse_root(float x) { return rsqrtf(x); }
#endif
"""

RMSNORM = r"""
// T5 = (T0 + T1) * rsqrt(mean((T0 + T1)^2) + eps) * T2.   Block (128, 3): y = 0, 1 compute a row each, y = 2 loads.
extern "C" __global__ void __launch_bounds__(384, 1) rmsnorm(const weft::bf16* __restrict__ T0, const weft::bf16* __restrict__ T1,
    const weft::bf16* __restrict__ T2, weft::bf16* __restrict__ T5, int rows, float eps) {
  constexpr int COLS = @COLS, STAGES = @STAGES, VECTORS = COLS / (128 * 8), ROW_BYTES = COLS * 2;
  unsigned char* shared = weft::dynamic_shared();
  weft::bf16* T0_s = (weft::bf16*)shared;                      // [STAGES][2][COLS]
  weft::bf16* T1_s = T0_s + STAGES * 2 * COLS;                 // [STAGES][2][COLS]
  weft::bf16* T5_s = T1_s + STAGES * 2 * COLS;                 // [2][COLS]
  unsigned long long* full_0 = (unsigned long long*)(T5_s + 2 * COLS);
  unsigned long long* full_1 = full_0 + STAGES;
  unsigned long long* empty_0 = full_1 + STAGES;
  unsigned long long* empty_1 = empty_0 + STAGES;
  float* partial = (float*)(empty_1 + STAGES);                 // [2 groups][2][4]
  const int t = threadIdx.x, group = threadIdx.y, warp = t / 32;
  if (group == 0 && t == 0) {
    for (int s = 0; s < STAGES; s++) {
      weft::mbarrier_init(full_0 + s, 1);
      weft::mbarrier_init(full_1 + s, 1);
      weft::mbarrier_init(empty_0 + s, 8);
      weft::mbarrier_init(empty_1 + s, 8);
    }
    WEFT_NAME(full_0, STAGES * 8, "full_0");
    WEFT_NAME(full_1, STAGES * 8, "full_1");
    WEFT_NAME(empty_0, STAGES * 8, "empty_0");
    WEFT_NAME(empty_1, STAGES * 8, "empty_1");
    weft::fence_mbarrier_init();
  }
  weft::block_sync();   // init
  const int tiles = (rows + 1) / 2;
  if (group == 2) {
    weft::setmaxnreg_dec<40>();
    if (warp == 0 && weft::elect()) {
      WEFT_ROLE("load T0");
      int k = 0;
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, k++) {
        const int stage = k % STAGES, round = k / STAGES, tile_rows = rows - tile * 2 < 2 ? rows - tile * 2 : 2;
        weft::mbarrier_wait_phase(empty_0 + stage, round - 1);
        weft::mbarrier_arrive_expect_tx(full_0 + stage, tile_rows * ROW_BYTES);
        weft::bulk_load(T0_s + stage * 2 * COLS, T0 + (long long)tile * 2 * COLS, tile_rows * ROW_BYTES, full_0 + stage);
      }
    } else if (warp == 1 && weft::elect()) {
      WEFT_ROLE("load T1");
      int k = 0;
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, k++) {
        const int stage = k % STAGES, round = k / STAGES, tile_rows = rows - tile * 2 < 2 ? rows - tile * 2 : 2;
        weft::mbarrier_wait_phase(empty_1 + stage, round - 1);
        weft::mbarrier_arrive_expect_tx(full_1 + stage, tile_rows * ROW_BYTES);
        weft::bulk_load(T1_s + stage * 2 * COLS, T1 + (long long)tile * 2 * COLS, tile_rows * ROW_BYTES, full_1 + stage);
      }
    }
  } else {
    weft::setmaxnreg_inc<232>();
    WEFT_ROLE(group ? "compute 1" : "compute 0");
    weft::Array<weft::bf16, VECTORS * 8> weight;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) weft::load_global_vector<8>(weight, i * 8, T2 + (i * 128 + t) * 8);
    int k = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, k++) {
      const int row = tile * 2 + group, stage = k % STAGES, round = k / STAGES;
      weft::mbarrier_wait_phase(full_0 + stage, round);
      weft::mbarrier_wait_phase(full_1 + stage, round);
      if (row < rows) {
        weft::Array<float, VECTORS * 8> T3, T4;
        float square = 0.f;
        weft::Array<weft::bf16, 8> packed;
        // before reading
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
          weft::load_shared_vector<8>(packed, 0, T0_s + (stage * 2 + group) * COLS + (i * 128 + t) * 8);
          weft::convert_vector<8>(T3, i * 8, packed, 0);
          weft::load_shared_vector<8>(packed, 0, T1_s + (stage * 2 + group) * COLS + (i * 128 + t) * 8);
          weft::convert_vector<8>(T4, i * 8, packed, 0);
#pragma unroll
          for (int j = 0; j < 8; j++) {
            const float h = T3[i * 8 + j] + T4[i * 8 + j];
            T3[i * 8 + j] = h;
            square += h * h;
          }
        }
        weft::warp_sync(0xffffffffu);   // release
        if (weft::lane() == 0) { weft::mbarrier_arrive(empty_0 + stage); weft::mbarrier_arrive(empty_1 + stage); }
#pragma unroll
        for (int o = 16; o; o /= 2) square += weft::shuffle_xor(square, o);
        float* mine = partial + group * 8 + k % 2 * 4;
        if (weft::lane() == 0) weft::store_shared(mine + warp, square);
        if (t == 0) weft::bulk_wait_read<0>();
        weft::named_sync(1 + group, 128);   // reduction
        square = 0.f;
        for (int w = 0; w < 4; w++) square += weft::load_shared(mine + w);
        const float scale = inverse_root(square * (1.f / COLS) + eps);
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
#pragma unroll
          for (int j = 0; j < 8; j++) T3[i * 8 + j] = T3[i * 8 + j] * scale * weft::convert<float>(weight[i * 8 + j]);
          weft::convert_vector<8>(packed, 0, T3, i * 8);
          weft::store_shared_vector<8>(T5_s + group * COLS + (i * 128 + t) * 8, packed, 0);
        }
        weft::fence_proxy_async();
        weft::named_sync(1 + group, 128);   // output
        if (t == 0) {
          weft::bulk_store(T5 + (long long)row * COLS, T5_s + group * COLS, ROW_BYTES);
          weft::bulk_commit();
        }
      } else {
        weft::warp_sync(0xffffffffu);
        if (weft::lane() == 0) { weft::mbarrier_arrive(empty_0 + stage); weft::mbarrier_arrive(empty_1 + stage); }
      }
    }
    if (t == 0) weft::bulk_wait<0>();
  }
}
"""


def planted(text: str, old: str, new: str) -> str:
    """`text` with one mistake in it."""
    assert text.count(old) >= 1, f"the kernel has no {old!r}"
    return text.replace(old, new)


@functools.lru_cache(maxsize=None)
def unit(text: str, cols: int = COLS, stages: int = STAGES) -> str:
    return translation_unit(EXPONENTIAL + text.replace("@COLS", str(cols)).replace("@STAGES", str(stages)), ["cast"])


@functools.lru_cache(maxsize=None)
def kernel(text: str, entry: str, check: str, cols: int = COLS) -> EmulatedKernel:
    return EmulatedKernel(unit(text, cols), entry, check=check)


# ---- bf16 in numpy


def to_bf16(x: np.ndarray) -> np.ndarray:
    u = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(b: np.ndarray) -> np.ndarray:
    return (b.astype(np.uint32) << 16).view(np.float32)


def aligned(shape: tuple[int, ...], dtype: type, fill: object = None) -> np.ndarray:
    """A 256-byte aligned array, as cudaMalloc returns; numpy aligns to 16 only by luck."""
    count = int(np.prod(shape))
    raw = np.zeros(count * np.dtype(dtype).itemsize + 256, np.uint8)
    start = -raw.ctypes.data % 256
    array = raw[start : start + count * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
    if fill is not None:
        array[...] = fill
    return array


# ---- running


def run_softmax(text: str = SOFTMAX, rows: int = 3, check: str = "races", cols: int = COLS, **options: object) -> tuple[LaunchReport, float]:
    """Run; return the report and the largest error relative to half an ulp of bf16 (1.0 is exact rounding)."""
    x = aligned((rows, cols), np.uint16)
    x[...] = to_bf16(np.random.default_rng(rows).normal(size=(rows, cols)) * 3)
    y = aligned((rows, cols), np.uint16, 0x7FFF)
    args = [Buffer.of(x, "T0"), Buffer.of(y, "T1", written=True, initialised=False)]
    report = kernel(text, "softmax", check, cols).launch((rows, 1, 1), (128, 1, 1), 32, args, **options)
    exact = np.exp(from_bf16(x).astype(np.float64))
    exact /= exact.sum(1, keepdims=True)
    return report, float(np.max(np.abs(from_bf16(y) - exact) / exact) * 256)


def rmsnorm_shared_bytes(cols: int = COLS, stages: int = STAGES) -> int:
    return (stages * 4 + 2) * cols * 2 + 4 * stages * 8 + 2 * 2 * 4 * 4


def run_rmsnorm(text: str = RMSNORM, rows: int = 23, blocks: int = 2, check: str = "races", cols: int = COLS, **options: object) -> tuple[LaunchReport, float]:
    """Run; return the report and the largest error relative to half an ulp of bf16."""
    rng = np.random.default_rng(rows)
    x, z = aligned((rows, cols), np.uint16), aligned((rows, cols), np.uint16)
    w, y = aligned((cols,), np.uint16), aligned((rows, cols), np.uint16, 0x7FFF)
    x[...], z[...] = to_bf16(rng.normal(size=(rows, cols))), to_bf16(rng.normal(size=(rows, cols)))
    w[...] = to_bf16(rng.uniform(0.5, 1.5, size=cols))
    args = [Buffer.of(x, "T0"), Buffer.of(z, "T1"), Buffer.of(w, "T2"), Buffer.of(y, "T5", written=True, initialised=False)]
    args += [Scalar("int", rows), Scalar("float", 1e-5)]
    options.setdefault("registers_per_thread", 168)
    report = kernel(text, "rmsnorm", check, cols).launch((blocks, 1, 1), (128, 3, 1), rmsnorm_shared_bytes(cols), args, **options)
    h = from_bf16(x).astype(np.float64) + from_bf16(z)
    exact = h / np.sqrt((h**2).mean(1, keepdims=True) + 1e-5) * from_bf16(w)
    return report, float(np.max(np.abs(from_bf16(y) - exact) / np.maximum(np.abs(exact), 1e-30)) * 256)
