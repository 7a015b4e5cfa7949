"""The device library: finding blocks, their order, and that all of them compile on both machines."""

from __future__ import annotations

import pytest
from row_kernels import RMSNORM, SOFTMAX, unit

from weft.device import library
from weft.device.library import Block, CircularBlocks, UnknownBlock, in_order, registry, translation_unit
from weft.emulator.build import build_kernel
from weft.runtime.nvrtc import compile_cubin

EMPTY = 'extern "C" __global__ void empty(int* T0) {\n  weft::store_global(T0, 1);\n}'


def compile_for_gpu(source: str, arch: str) -> None:
    core = pytest.importorskip("cuda.core")
    core.Program(source, "c++", core.ProgramOptions(arch=arch, std="c++17")).compile("cubin")


def test_unit_ends_with_the_kernel_and_its_entry() -> None:
    assert translation_unit(EMPTY).endswith(EMPTY + "\nWEFT_ENTRY(empty)\n")
    assert translation_unit(EMPTY + "\nWEFT_ENTRY(empty)").count("WEFT_ENTRY(empty)\n") == 1


def test_kernel_with_launch_bounds_gets_its_entry() -> None:
    assert "WEFT_ENTRY(k)" in translation_unit('extern "C" __global__ void __launch_bounds__(128, 2) k(const float* __restrict__ T0) {}')
    assert "WEFT_ENTRY(k)" in translation_unit('__launch_bounds__(128) extern "C" __global__ void k(int n) {}')


def test_unit_names_no_header_but_the_emulators() -> None:
    includes = [line for line in translation_unit(EMPTY, registry()).split("\n") if line.lstrip().startswith("#include")]
    assert includes == ['#include "weft_emulator.h"']


def with_blocks(monkeypatch: pytest.MonkeyPatch, **requires: tuple[str, ...]) -> None:
    blocks = {name: Block(name, needs, f"// {name}") for name, needs in requires.items()}
    monkeypatch.setattr(library, "registry", lambda: blocks)


def test_blocks_come_after_what_they_require(monkeypatch: pytest.MonkeyPatch) -> None:
    with_blocks(monkeypatch, a=("c", "b"), b=("d",), c=("d",), d=(), unused=())
    assert [b.name for b in in_order(["a"])] == ["d", "c", "b", "a"]


def test_mistakes_in_requirements_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with_blocks(monkeypatch, a=("b",), b=("a",), c=("nowhere",))
    with pytest.raises(CircularBlocks, match="a -> b -> a"):
        in_order(["a"])
    with pytest.raises(UnknownBlock, match='"nowhere" \\(needed by c\\)'):
        in_order(["c"])


@pytest.mark.parametrize("block", sorted(registry()))
def test_block_compiles_on_both_machines(block: str) -> None:
    source = translation_unit(EMPTY, [block])
    for arch in ("sm_80", "sm_90a"):
        compile_for_gpu(source, arch)
    for check_races in (False, True):
        build_kernel(source, check_races=check_races)


@pytest.mark.parametrize(("text", "archs"), [(SOFTMAX, ("sm_80", "sm_90a")), (RMSNORM, ("sm_90a",))], ids=["softmax", "rmsnorm"])
def test_row_kernels_compile_for_the_gpu(text: str, archs: tuple[str, ...]) -> None:
    for arch in archs:
        compile_for_gpu(unit(text), arch)


@pytest.mark.parametrize("cols", [1024, 4096])
def test_row_kernels_stay_in_registers_and_use_wide_accesses(cols: int) -> None:
    for text, entry in ((SOFTMAX, "softmax"), (RMSNORM, "rmsnorm")):
        compiled = compile_cubin(unit(text, cols), entry, "sm_90a", keep_ptx=True)
        assert compiled.resources.stack_bytes == compiled.resources.spill_store_bytes == 0
        assert "ld.global.nc.v4" in compiled.ptx and "cvt.rn.bf16x2" in compiled.ptx
        assert " ld.v" not in compiled.ptx and " st.v" not in compiled.ptx  # the space of every pointer is known


def test_elements_of_16_bytes_go_to_another_block_of_a_cluster() -> None:
    """A complex<double>, and so a fold's state: whole words one by one, for no register holds them."""
    kernel = """extern "C" __global__ void send(const weft::complex<double>* __restrict__ T0, weft::complex<double>* __restrict__ T1) {
  __shared__ weft::complex<double> received[2];
  weft::store_shared_remote(received + weft::cluster_rank(), 1u - weft::cluster_rank(), weft::load_global(T0));
  weft::cluster_sync();
  weft::store_global(T1, received[1]);
}"""
    compile_cubin(translation_unit(kernel, ["complex"]), "send", "sm_90a")
