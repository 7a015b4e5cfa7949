"""Compiling the emulator runtime and emulated kernels with the host's C++ compiler, and caching the results.

Read first: `build_kernel`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from weft.errors import InternalError, UserError
from weft.options import current

HERE = Path(__file__).resolve().parent
RUNTIME = HERE / "runtime"
MAX_CACHED_KERNELS = 8000  # about 30 KiB each

# Both sides: no C++ library is used, so neither exceptions nor type information are needed.
COMMON_FLAGS = ("-std=c++17", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-stack-protector")
LINK_FLAGS = ("-shared", "-nostdlib")
# Contraction as ptxas does it; integer overflow wraps and float* may alias int*, as the generated text expects.
KERNEL_FLAGS = ("-O2", "-w", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fwrapv", "-fno-strict-aliasing")
# Passes of GCC that take a sixth of the time of a build and gain nothing measurable here. Other compilers do not know their names.
GCC_LEAVES_OUT = ("-fno-gcse", "-fno-schedule-insns2", "-fno-tree-slp-vectorize", "-fno-tree-dominator-opts", "-fno-tree-pta", "-fira-region=one")
# The inlined context switch pushes below the stack pointer, hence no red zone.
RUNTIME_FLAGS = ("-O2", "-w", "-fvisibility=hidden", "-fno-threadsafe-statics", "-fno-strict-aliasing")
# The sanitizer's instrumentation without its runtime; runtime/raw_net.cpp has the hooks.
RAW_NET_FLAGS = ("-fsanitize=thread", "-DWEFT_RAW_NET=1")


class NoCompiler(UserError):
    code = "W410"
    what = "the emulator needs a C++17 compiler, and none was found (tried {tried})"
    fix = "install g++ or clang++, or `pip install ziglang`, or set CXX to a compiler"


class KernelDoesNotCompile(InternalError):
    code = "W411"
    what = "the kernel text does not compile for the emulator with {compiler}; the text is in {path}\n{output}"


class RuntimeDoesNotCompile(InternalError):
    code = "W412"
    what = "the emulator runtime does not compile with {compiler}\n{output}"


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler: its command, the flags that depend on it and on this processor, and what its code can run on."""

    command: tuple[str, ...]
    machine_flags: tuple[str, ...]
    target: str = "any processor of this architecture"
    kernel_flags: tuple[str, ...] = ()

    def run(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.command, *arguments], capture_output=True, text=True, check=False)


def cache_dir() -> Path:
    """Folder of compiled artefacts, below the setting `cache_dir`."""
    return current().cache_path / "emulator"


def _processor_features() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split()
    except (OSError, IndexError):
        return []


def _machine_flags() -> tuple[str, ...]:
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    features = _processor_features()
    # x86-64-v3 is as fast as native here, and safe in a cache folder that several machines share.
    wanted = {"avx2", "fma", "bmi1", "bmi2", "f16c"}
    # Clash protection touches every page of a large frame, so that an overflow meets the guard page and not a neighbour.
    return ("-fstack-clash-protection", *(["-march=x86-64-v3"] if wanted <= set(features) else []))


def _toolchain(command: list[str]) -> Toolchain:
    if Path(command[0]).stem == "zig":  # names processors in its own way; its default is this very one, which suits a kernel that is built here and runs here
        return Toolchain(tuple(command), (), target=_digest(*_processor_features()))
    is_gcc = "g++" in Path(command[0]).name and "clang" not in Path(command[0]).name and platform.system() == "Linux"  # elsewhere g++ may be clang
    return Toolchain(tuple(command), _machine_flags(), kernel_flags=GCC_LEAVES_OUT if is_gcc else ())


@functools.lru_cache(maxsize=None)
def find_toolchain(cxx: str | None = None) -> Toolchain:
    """Return the compiler to use: `cxx` or $CXX, g++, clang++, else the ziglang wheel."""
    asked = cxx or os.environ.get("CXX")
    for command in ([asked.split()] if asked else []) + [["g++"], ["clang++"]]:
        if shutil.which(command[0]):
            return _toolchain(command)
    spec = importlib.util.find_spec("ziglang")
    if spec and spec.origin:
        return _toolchain([str(Path(spec.origin).parent / "zig"), "c++"])
    raise NoCompiler(tried=", ".join(([asked] if asked else []) + ["g++", "clang++", "ziglang"]))


def _forget_oldest(folder: Path) -> None:
    """Keep the folder from growing without end: drop the kernels used longest ago once there are too many."""
    kernels = [p for p in folder.glob("kernel-*.so")]
    if len(kernels) <= MAX_CACHED_KERNELS:
        return
    by_age = sorted((p.stat().st_mtime, p) for p in kernels if p.exists())
    for _, path in by_age[: len(by_age) // 4]:
        path.unlink(missing_ok=True)  # a process that has loaded it keeps it


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


@functools.lru_cache(maxsize=None)
def _folder_text(folder: Path) -> str:
    return "\0".join(p.name + "\0" + p.read_text() for p in sorted(folder.iterdir()) if p.suffix in (".h", ".cpp"))


def _compile(toolchain: Toolchain, arguments: list[str], target: Path, *, separate_link: bool = False) -> subprocess.CompletedProcess[str]:
    """Compile to a temporary name and rename, so that concurrent processes see whole files only.

    `separate_link`: for instrumented code, since a compiler that is told of the sanitizer when it links adds its runtime.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
        whole, part = str(Path(folder) / "whole.so"), str(Path(folder) / "part.o")
        flags = [*toolchain.machine_flags, *COMMON_FLAGS, *arguments]
        if separate_link:
            result = toolchain.run([*flags, "-c", "-o", part])
            if result.returncode == 0:
                result = toolchain.run([*LINK_FLAGS, part, "-o", whole])
        else:
            result = toolchain.run([*flags, *LINK_FLAGS, "-o", whole])
        if result.returncode == 0:
            os.rename(whole, target)
    return result


def build_runtime(toolchain: Toolchain | None = None) -> Path:
    """Return the compiled runtime, building it on first use (a few seconds)."""
    toolchain = toolchain or find_toolchain()
    flags = [*RUNTIME_FLAGS, *(["-mno-red-zone"] if platform.machine() in ("x86_64", "AMD64") else [])]
    key = _digest(repr((toolchain, COMMON_FLAGS, LINK_FLAGS, flags)), _folder_text(RUNTIME), _folder_text(HERE))
    target = cache_dir() / f"runtime-{key}.so"
    if not target.exists():
        result = _compile(toolchain, [*flags, str(RUNTIME / "runtime.cpp")], target)
        if result.returncode:
            raise RuntimeDoesNotCompile(compiler=toolchain.command[0], output=result.stderr)
    return target


def build_kernel(source: str, *, check_races: bool, raw_net: bool = False, toolchain: Toolchain | None = None) -> Path:
    """Return the compiled kernel of a translation unit. `raw_net`: it calls the runtime for accesses around the primitives.

    Errors: KernelDoesNotCompile with the compiler's words; the text is kept for a look.
    """
    toolchain = toolchain or find_toolchain()
    defined = ["-DWEFT_EMULATOR=1", *(["-DWEFT_CHECK_RACES=1"] if check_races else [])]
    flags = [*KERNEL_FLAGS, *toolchain.kernel_flags, *defined, *(RAW_NET_FLAGS if raw_net else [])]
    key = _digest(repr((toolchain, COMMON_FLAGS, LINK_FLAGS, flags)), _folder_text(HERE), source)
    target = cache_dir() / f"kernel-{key}.so"
    if target.exists():
        os.utime(target)  # used lately
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    _forget_oldest(target.parent)
    text = target.with_suffix(f".{os.getpid()}.cpp")
    text.write_text(source)
    result = _compile(toolchain, [*flags, "-I", str(HERE), "-x", "c++", str(text)], target, separate_link=raw_net)
    if result.returncode:
        raise KernelDoesNotCompile(compiler=toolchain.command[0], path=text, output=result.stderr[:6000])
    text.unlink()
    return target
