"""Two kernels written with the primitives, as code generation writes them, and how to run them in the emulator.

`SOFTMAX`: one block per row. `RMSNORM`: persistent and warp-specialized; two async roles feed two compute groups through a
ring of stages, the result leaves by bulk stores. Mistakes are planted by replacing text (`planted`).
"""

from __future__ import annotations

import functools
from importlib.resources import files

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

_EXAMPLE = (files("weft.check") / "examples" / "rmsnorm.cu").read_text()
RMSNORM = _EXAMPLE[_EXAMPLE.index("// T5 = ") :].replace("COLS = 1024, STAGES = 3", "COLS = @COLS, STAGES = @STAGES")


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
