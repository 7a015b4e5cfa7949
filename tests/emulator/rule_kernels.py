"""A frame for kernels of a few lines, each about one rule."""

from __future__ import annotations

import functools

import numpy as np
from row_kernels import aligned

from weft.device.library import translation_unit
from weft.emulator import Buffer, EmulatedKernel, LaunchReport, Scalar

FRAME = """
extern "C" __global__ void rule(const float* __restrict__ T0, float* T1, unsigned* flags, float* work, int n) {
  float* s = (float*)weft::dynamic_shared();
  unsigned long long* bar = (unsigned long long*)(weft::dynamic_shared() + 4096);
  const int t = threadIdx.x, b = blockIdx.x;
  (void)s; (void)bar; (void)t; (void)b;
@BODY
}
"""

SHARED_BYTES = 8192
SCHEDULES = [dict(seed=None), dict(seed=None, copy_timing="at once"), dict(seed=1), dict(seed=2), dict(seed=3, schedule="random lanes")]


@functools.lru_cache(maxsize=None)
def rule_unit(body: str) -> str:
    return translation_unit(FRAME.replace("@BODY", body), ["cast"])


@functools.lru_cache(maxsize=None)
def rule_kernel(body: str, check: str) -> EmulatedKernel:
    return EmulatedKernel(rule_unit(body), "rule", check=check)


def run_rule(body: str, *, blocks: int = 2, threads: int = 64, check: str = "races", n: int = 0, **options: object) -> tuple[LaunchReport, np.ndarray]:
    """Run the body with 2 blocks of 64 threads; return the report and T1.

    T0: 256 floats 0, 1, 2, ...; T1: 1024 zeros, written; flags: 64 zeros, written; work: 1024 floats, uninitialised.
    """
    t0, t1 = aligned((256,), np.float32), aligned((1024,), np.float32, 0)
    t0[...] = np.arange(256)
    flags, work = aligned((64,), np.uint32, 0), aligned((1024,), np.float32, 0)
    args = [
        Buffer.of(t0, "T0"),
        Buffer.of(t1, "T1", written=True),
        Buffer.of(flags, "flags", written=True),
        Buffer.of(work, "work", written=True, initialised=False, workspace=True),
        Scalar("int", n),
    ]
    options.setdefault("raise_findings", False)
    report = rule_kernel(body, check).launch((blocks, 1, 1), (threads, 1, 1), SHARED_BYTES, args, **options)
    return report, t1
