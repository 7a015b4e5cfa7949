"""Compiling text: options, errors that leave a repro, the cached form, finding NVRTC."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from weft.options import current, options
from weft.runtime import nvrtc
from weft.cache import DiskCache
from weft.runtime.nvrtc import Candidate, CompilationFailed, NvrtcMissing, NvrtcTooOld, candidates, command_line, compile_cubin, compile_or_load

ADD = 'extern "C" __global__ void add(const float* __restrict__ a, float* b, float c) { b[threadIdx.x] = a[threadIdx.x] * c + 1.0f; }'


def test_text_becomes_machine_code() -> None:
    compiled = compile_cubin(ADD, "add", "sm_90a")
    assert compiled.cubin[:4] == b"\x7fELF"
    assert compiled.log == "" and compiled.ptx == "" and not compiled.from_cache
    assert 0 < compiled.seconds < 60 and 0 < compiled.resources.registers <= 255


def test_the_report_is_kept_when_asked_for() -> None:
    compiled = compile_cubin(ADD, "add", "sm_90a", ptxas_verbose=True, keep_ptx=True)
    assert "registers" in compiled.log
    assert ".target sm_90a" in compiled.ptx


def test_warnings_are_kept_without_the_report() -> None:
    source = ADD.replace("{ b[", "{ int unused; b[")
    compiled = compile_cubin(source, "add", "sm_90a")
    assert "unused" in compiled.log and "ptxas" not in compiled.log


def test_options_of_the_compiler() -> None:
    plain = command_line("sm_90a", max_registers=None)
    assert plain == ["-arch=sm_90a", "-std=c++17", "-default-device", "--fmad=true", "--ptxas-options=-v"]
    assert command_line("sm_90a", max_registers=255) == plain
    assert command_line("sm_90a", max_registers=64)[-1] == "-maxrregcount=64"
    all_on = command_line("sm_90a", max_registers=64, line_info=True, fast_math=True, fmad=False)
    assert all_on[3] == "--fmad=false" and all_on[-2:] == ["-lineinfo", "--use_fast_math"]


def test_options_reach_the_code() -> None:
    def ptx(**keywords: bool) -> str:
        return compile_cubin(ADD.replace("1.0f;", "__expf(c) / a[0];"), "add", "sm_90a", keep_ptx=True, **keywords).ptx  # type: ignore[arg-type]

    assert "div.rn.f32" in ptx() and "div.approx" in ptx(fast_math=True)
    assert "fma.rn.f32" in ptx() and ".loc" in ptx(line_info=True)
    assert "fma.rn.f32" not in ptx(fmad=False)


def test_hopper_instructions_compile() -> None:
    """The target carries the `a`: setmaxnreg exists for sm_90a and not for sm_90."""
    source = 'extern "C" __global__ void __launch_bounds__(384, 1) k(int* p) { asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); p[0] = 1; }'
    compile_cubin(source, "k", "sm_90a")
    with pytest.raises(CompilationFailed, match="setmaxnreg"):
        compile_cubin(source, "k", "sm_90")


def test_a_failure_leaves_the_text_the_log_and_a_repro_that_runs(tmp_path: Path) -> None:
    with options(dump_dir=tmp_path / "failures"), pytest.raises(CompilationFailed) as error:
        compile_cubin(ADD.replace("* c", "* {d}"), "add", "sm_90a", max_registers=40)
    text = str(error.value)
    assert text.startswith(f"W742: NVRTC {nvrtc.load().version_text} does not compile kernel add for sm_90a (NVRTC_ERROR_COMPILATION)")
    assert 'error: expected an expression' in text
    (folder,) = (tmp_path / "failures").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["kernel.cu", "nvrtc.log", "repro.py"]
    assert "{d}" in (folder / "kernel.cu").read_text() and "error" in (folder / "nvrtc.log").read_text()
    environment = {**os.environ, "PYTHONPATH": str(Path(nvrtc.__file__).parents[2])}
    done = subprocess.run([sys.executable, str(folder / "repro.py")], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1 and "W742" in done.stderr
    (folder / "kernel.cu").write_text(ADD)
    done = subprocess.run([sys.executable, str(folder / "repro.py")], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0 and "registers" in done.stdout


def test_a_failure_is_reported_even_when_its_files_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with options(dump_dir=tmp_path / "file"), pytest.raises(CompilationFailed, match="not written"):
        compile_cubin("nonsense", "add", "sm_90a")


def test_a_chip_that_this_nvrtc_does_not_know() -> None:
    with pytest.raises(NvrtcTooOld, match="cannot compile for sm_999"):
        compile_cubin(ADD, "add", "sm_999")


def test_the_second_compilation_comes_from_the_disk(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    first = compile_or_load(ADD, "add", "sm_90a", cache=cache)
    second = compile_or_load(ADD, "add", "sm_90a", cache=cache)
    assert (first.from_cache, second.from_cache) == (False, True)
    assert (second.cubin, second.resources, second.log) == (first.cubin, first.resources, first.log)
    assert second.resources.spill_store_bytes == 0
    assert "registers" in compile_or_load(ADD, "add", "sm_90a", cache=cache, options=current(ptxas_verbose=True)).log
    assert cache.use().entries == 1


def test_whatever_changes_code_is_in_the_key(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    compile_or_load(ADD, "add", "sm_90a", cache=cache)
    assert not compile_or_load(ADD + "\n", "add", "sm_90a", cache=cache).from_cache
    assert not compile_or_load(ADD, "add", "sm_80", cache=cache).from_cache
    assert not compile_or_load(ADD, "add", "sm_90a", cache=cache, max_registers=32).from_cache
    assert not compile_or_load(ADD, "add", "sm_90a", cache=cache, fmad=False).from_cache
    assert not compile_or_load(ADD, "add", "sm_90a", cache=cache, options=current(fast_math=True)).from_cache
    assert not compile_or_load(ADD, "add", "sm_90a", cache=cache, options=current(device_line_info=True)).from_cache
    assert cache.use().entries == 7


def test_a_cached_kernel_needs_no_compiler_loaded(tmp_path: Path) -> None:
    compile_or_load(ADD, "add", "sm_90a", cache=DiskCache(tmp_path))
    script = (
        "import sys; from pathlib import Path\n"
        "from weft.runtime import nvrtc; from weft.cache import DiskCache\n"
        "assert nvrtc.compile_or_load(sys.argv[1], 'add', 'sm_90a', cache=DiskCache(Path(sys.argv[2]))).from_cache\n"
        "assert not nvrtc._loaded and 'torch' not in sys.modules and 'cuda' not in sys.modules\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(nvrtc.__file__).parents[2])}
    subprocess.run([sys.executable, "-c", script, ADD, str(tmp_path)], env=environment, check=True)


def test_a_damaged_entry_is_compiled_again(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    good = compile_or_load(ADD, "add", "sm_90a", cache=cache)
    (path,) = tmp_path.rglob("*.weft")
    path.write_bytes(path.read_bytes()[:-1])
    again = compile_or_load(ADD, "add", "sm_90a", cache=cache)
    assert not again.from_cache and again.cubin == good.cubin
    assert compile_or_load(ADD, "add", "sm_90a", cache=cache).from_cache


def test_the_cache_can_be_switched_off(tmp_path: Path) -> None:
    with options(cache=False, cache_dir=tmp_path):
        for _ in range(2):
            assert not compile_or_load(ADD, "add", "sm_90a").from_cache
    assert not list(tmp_path.rglob("*.weft"))


def test_a_dump_of_ptx_compiles_anew(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    compile_or_load(ADD, "add", "sm_90a", cache=cache)
    compiled = compile_or_load(ADD, "add", "sm_90a", cache=cache, options=current(dump="ptx:@ad*"))
    assert not compiled.from_cache and ".entry add" in compiled.ptx


def test_threads_compile_at_once() -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda i: compile_cubin(ADD.replace("1.0f", f"{i}.0f"), "add", "sm_90a"), range(8)))
    assert len({result.cubin for result in results}) == 8


def test_nvrtc_is_found_and_told_apart_without_loading() -> None:
    found = nvrtc.load("")
    assert found.path in [candidate.path for candidate in candidates()]
    assert 90 in found.capabilities
    assert found.version_text in nvrtc.identity("")


def test_a_wrong_path_is_named() -> None:
    with pytest.raises(NvrtcMissing, match="/no/such/libnvrtc.so"):
        nvrtc.load("/no/such/libnvrtc.so")


def test_an_nvrtc_of_the_drivers_major_version_comes_first(fake_driver) -> None:  # type: ignore[no-untyped-def]
    """Machine code loads within a major version, so 12 is safer than 14 on a driver of CUDA 13."""
    libraries = [Candidate(f"libnvrtc.so.{major}", "test", major) for major in (12, 14, 13)]
    assert nvrtc.driver_cuda_version() == (13, 0)
    assert [candidate.major for candidate in sorted(libraries, key=nvrtc._preference)] == [13, 12, 14]


def test_without_a_driver_the_newest_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "driver_cuda_version", lambda: None)
    libraries = [Candidate(f"libnvrtc.so.{major}", "test", major) for major in (12, 14, 13)]
    assert [candidate.major for candidate in sorted(libraries, key=nvrtc._preference)] == [14, 13, 12]
