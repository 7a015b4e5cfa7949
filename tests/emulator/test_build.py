"""Building: which compiler, what it says, and a cache that several processes share."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from row_kernels import run_rmsnorm, run_softmax

from weft.cache import DiskCache
from weft.emulator import build, toolchain
from weft.emulator.build import KernelDoesNotCompile, NoCompiler, build_kernel, find_toolchain
from weft.options import options

FRESH = find_toolchain.__wrapped__  # not cached


def only(monkeypatch: pytest.MonkeyPatch, *commands: str) -> None:
    monkeypatch.setattr(toolchain.shutil, "which", lambda c: c if c in commands else None)
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)


def test_compilers_are_tried_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "clang++", "mine")
    monkeypatch.setattr(toolchain, "_version", lambda command: "1.0")
    assert FRESH().command == ("clang++",)
    monkeypatch.setenv("CXX", "mine --fast")
    assert FRESH().command == ("mine", "--fast")


def test_no_compiler_names_the_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)
    with pytest.raises(NoCompiler) as error:
        FRESH()
    assert "tried g++, clang++, ziglang" in str(error.value) and "pip install ziglang" in str(error.value)


def test_text_that_does_not_compile_is_kept(tmp_path: Path) -> None:
    with options(cache_dir=str(tmp_path)), pytest.raises(KernelDoesNotCompile, match="does not name a type|unknown type") as error:
        build_kernel("quaternion x;", check_races=False)
    assert Path(str(error.value.values["path"])).read_text() == "quaternion x;"


def test_processes_share_a_cache(tmp_path: Path) -> None:
    """Several processes build the runtime and one kernel at once; all succeed, and no temporary file stays."""
    script = "import row_kernels; assert row_kernels.run_softmax(check='bounds')[1] < 1.1"
    folders = [str(Path(__file__).parent), str(Path(build.__file__).parents[2]), *sys.path]
    environment = {**os.environ, "WEFT_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(folders)}
    children = [subprocess.Popen([sys.executable, "-c", script], env=environment) for _ in range(2)]
    assert [child.wait() for child in children] == [0, 0]
    assert DiskCache(tmp_path).use().entries == 2 and not list((tmp_path / "tmp").iterdir())


ZIG = importlib.util.find_spec("ziglang")
OTHERS = {
    "clang++": None if shutil.which("clang++") else "clang++ is not installed",
    "the ziglang wheel": None if ZIG else "the ziglang wheel is not installed",
    "zig by CXX": None if ZIG else "the ziglang wheel is not installed",
}
RUNS = """
import row_kernels, rule_kernels
for check in ("bounds", "races"):
    assert row_kernels.run_softmax(check=check)[1] < 1.1
    assert row_kernels.run_rmsnorm(seed=1, check=check)[1] < 1.1
report, _ = rule_kernels.run_rule("weft::store_shared(s, 1.f);")
assert report.kinds() == {"data-race"}, report
"""


@pytest.mark.parametrize("compiler", OTHERS)
def test_other_compilers_build_the_runtime_and_kernels(compiler: str, tmp_path: Path) -> None:
    """Right results, and a race found, with each compiler that g++ is not."""
    if OTHERS[compiler]:
        pytest.skip(OTHERS[compiler])
    script = RUNS
    folders = [str(Path(__file__).parent), str(Path(build.__file__).parents[2]), *sys.path]
    environment = {**os.environ, "WEFT_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(folders)}
    if compiler == "the ziglang wheel":
        environment.pop("CXX", None)
        script = "import weft.emulator.toolchain as b; b.shutil.which = lambda c: None\n" + RUNS
    else:
        environment["CXX"] = "clang++" if compiler == "clang++" else f"{Path(ZIG.origin).parent / 'zig'} c++"  # type: ignore[union-attr, arg-type]
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)


@pytest.mark.parametrize("cols", [1024, 2048, 4096])
def test_widths(cols: int) -> None:
    assert run_softmax(cols=cols, check="bounds")[1] < 1.1
    assert run_rmsnorm(cols=cols, rows=7, check="bounds")[1] < 1.1
