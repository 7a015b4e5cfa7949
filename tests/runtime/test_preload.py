"""Loading beside the program: what is loaded and what is not, forks, exits, failures that stay silent until a kernel is made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

START = """
import ctypes, os, sys
import weft
from weft import arch
class Driver:
    initialised = 0
    def cuDriverGetVersion(self, place): return 1
    def cuInit(self, flags): Driver.initialised += 1; return 0
arch.open_driver = Driver
"""
"""A program on a machine with a driver, up to its use of FusionDefinition."""


def run(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=env, check=False, timeout=120)


def printed(text: str, **environment: str) -> str:
    done = run(text, **environment)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.strip()


def test_the_compiler_is_loaded_and_the_driver_is_left_alone(fake_driver_source: Path, tmp_path: Path) -> None:
    """NVRTC would load and initialise the driver for its own cache; then a forked child could not use CUDA."""
    shutil.copy(fake_driver_source, tmp_path / "libcuda.so.1")
    text = START + "weft.FusionDefinition\nfrom weft.runtime import nvrtc, preload\npreload.wait()\nmaps = open('/proc/self/maps').read()\n"
    shown = printed(text + "print(len(nvrtc._loaded), Driver.initialised, 'nvrtc-builtins' in maps, 'libcuda.so' in maps)", LD_LIBRARY_PATH=str(tmp_path))
    assert shown == "1 0 True False"


@pytest.mark.parametrize("imports_torch", [True, False])
def test_modules_are_imported_where_torch_is(imports_torch: bool) -> None:
    text = START + f"if {imports_torch}: import torch\nweft.FusionDefinition\nfrom weft.runtime import preload\npreload.wait()\n"
    assert printed(text + "print('weft.runtime.fec' in sys.modules, 'torch' in sys.modules)") == f"{imports_torch} {imports_torch}"


@pytest.mark.parametrize("setting", [{"WEFT_PRELOAD": "off"}, {"WEFT_EMULATE": "on"}])
def test_it_can_be_switched_off(setting: dict[str, str]) -> None:
    text = START + "weft.FusionDefinition\nfrom weft.runtime import preload\nprint(preload._thread, 'weft.runtime.nvrtc' in sys.modules)"
    assert printed(text, **setting) == "None False"


def test_without_a_driver_nothing_is_loaded() -> None:
    no_driver = "def missing(): raise arch.DriverMissing(library='libcuda.so.1', reason='not there')\narch.open_driver = missing\n"
    text = START + no_driver + "weft.FusionDefinition\nfrom weft.runtime import preload\npreload.wait()\nprint('weft.runtime.nvrtc' in sys.modules)"
    assert printed(text) == "False"


def test_other_names_of_the_package_load_nothing() -> None:
    text = START + "weft.DataType, weft.Fusion\nprint('weft.runtime.preload' in sys.modules)"
    assert printed(text) == "False"


def test_a_failure_is_told_by_the_call_that_needs_the_compiler() -> None:
    text = START + "weft.FusionDefinition\nfrom weft.runtime import nvrtc, preload\npreload.wait()\nprint('silent')\nnvrtc.load()"
    done = run(text, WEFT_NVRTC="/no/such/libnvrtc.so")
    assert done.stdout == "silent\n" and "W740" in done.stderr and done.stderr.count("Traceback") == 1


def test_a_wrong_setting_is_told_by_the_call_that_reads_it() -> None:
    text = START + "weft.FusionDefinition\nprint('silent')\nweft.options.current()"
    done = run(text, WEFT_PRELOAD="perhaps")
    assert done.stdout == "silent\n" and "W701" in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_forked_meanwhile_compiles() -> None:
    """The fork waits for the thread, so no lock of NVRTC or of an import is held in the child for ever."""
    text = (
        START
        + """
weft.FusionDefinition
child = os.fork()
if child == 0:
    from weft.runtime.nvrtc import compile_cubin
    os._exit(7 if compile_cubin('extern "C" __global__ void k() {}', "k", "sm_90a").cubin else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert printed(text) == "7"


def test_a_program_may_end_meanwhile() -> None:
    assert printed(START + "weft.FusionDefinition\nprint('end')") == "end"
    assert run(START + "weft.FusionDefinition\nsys.exit(3)").returncode == 3
