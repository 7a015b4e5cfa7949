"""Resources read off cubins and ptxas's report."""

from __future__ import annotations

import pytest

from weft.runtime import nvrtc
from weft.runtime.nvrtc import compile_cubin
from weft.runtime.resources import NotACubin, Resources, cubin_resources, resources_of

REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'other' for 'sm_90a'
ptxas info    : Function properties for other
ptxas         .     0 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers
ptxas info    : Compiling entry function 'spilling' for 'sm_90a'
ptxas info    : Function properties for spilling
    1424 bytes stack frame, 668 bytes spill stores, 744 bytes spill loads
ptxas info    : Used 32 registers, used 2 barriers, 1424 bytes cumulative stack size, 512 bytes smem
"""

SPILLING = """
extern "C" __global__ void other(int* p) { p[threadIdx.x] += 1; }
extern "C" __global__ void spilling(const float* a, float* b, int n) {
  __shared__ float s[128];
  s[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  float v[120];
#pragma unroll
  for (int k = 0; k < 120; k++) v[k] = a[k * n + threadIdx.x];
  for (int j = 0; j < n; j++)
#pragma unroll
    for (int k = 0; k < 120; k++) v[k] = v[k] * v[(k + 7) % 120] + s[(k + j) & 127];
#pragma unroll
  for (int k = 0; k < 120; k++) b[k * n + threadIdx.x] = v[k];
}
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_a_cubin_tells_its_kernels_resources(target: str) -> None:
    compiled = compile_cubin(SPILLING, "spilling", target, max_registers=32, ptxas_verbose=True)
    found = compiled.resources
    assert found.registers == 32
    assert found.static_shared_bytes == 512
    assert found.has_spills and found.stack_bytes > 0 and found.code_bytes > 1000
    assert found.barriers == 1
    assert f"Used {found.registers} registers" in compiled.log and "512 bytes smem" in compiled.log
    other = cubin_resources(compiled.cubin, "other")
    assert other.registers < 32 and other.static_shared_bytes == 0 and other.stack_bytes == 0
    assert other.spill_store_bytes is None and not other.has_spills


def test_without_a_register_limit_nothing_spills() -> None:
    found = compile_cubin(SPILLING, "spilling", "sm_90a", max_registers=255).resources
    assert found.registers > 120 and not found.has_spills and found.spill_store_bytes == 0


def test_the_report_is_read_for_the_right_kernel() -> None:
    cubin = compile_cubin(SPILLING, "spilling", "sm_80").cubin
    spilling, other = resources_of(cubin, "spilling", REPORT), resources_of(cubin, "other", REPORT)
    assert (spilling.spill_store_bytes, spilling.spill_load_bytes, spilling.barriers) == (668, 744, 2)
    assert (other.spill_store_bytes, other.spill_load_bytes, other.barriers) == (8, 8, 0)


def test_what_is_no_cubin_is_refused_by_name() -> None:
    cubin = compile_cubin(SPILLING, "spilling", "sm_80").cubin
    with pytest.raises(NotACubin) as error:
        cubin_resources(b"not a cubin", "k")
    assert str(error.value).splitlines()[0] == "W730: these 11 bytes are not machine code of kernel 'k': not a 64-bit CUDA ELF file"
    with pytest.raises(NotACubin, match="it holds (spilling, other|other, spilling)"):
        cubin_resources(cubin, "missing")
    for length in (5, 64, 200, len(cubin) // 2):
        with pytest.raises(NotACubin):
            cubin_resources(cubin[:length], "spilling")


def test_resources_survive_json() -> None:
    some = Resources(registers=32, static_shared_bytes=512, stack_bytes=0, code_bytes=128, spill_store_bytes=None)
    assert Resources.from_json(some.to_json()) == some
    assert str(some) == "32 registers, 512 B static shared, 0 B stack, 128 B code"


def test_spills_are_known_when_nvrtc_answers_from_its_own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such an answer has no report. A kernel without a stack spills nothing; one with a stack is compiled again."""
    real, calls = nvrtc._run, []

    def cached(library: object, source: str, entry: str, arguments: list[str], keep_ptx: bool) -> tuple[int, str, bytes, str]:
        calls.append("--no-cache" in arguments)
        status, log, cubin, ptx = real(library, source, entry, arguments, keep_ptx)  # type: ignore[arg-type]
        return status, log if calls[-1] else "", cubin, ptx

    wanted = compile_cubin(SPILLING, "spilling", "sm_80", max_registers=32).resources
    monkeypatch.setattr(nvrtc, "_run", cached)
    found = compile_cubin(SPILLING, "spilling", "sm_80", max_registers=32).resources
    assert found == wanted and found.spill_store_bytes and calls == [False, True]
    plain = compile_cubin('extern "C" __global__ void plain(int* x) { *x = 1; }', "plain", "sm_80").resources
    assert (plain.spill_store_bytes, plain.spill_load_bytes, plain.stack_bytes) == (0, 0, 0) and calls == [False, True, False]
    compile_cubin(SPILLING, "spilling", "sm_80", max_registers=32, use_cache=False)
    assert calls[3:] == [True]
