"""The host's C++ compiler: which one, its flags and version, and what it says when it does not work.

Owns running it, within a time limit and with temporary files in a folder of ours. Read first: `find_toolchain`, `Toolchain.build`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from weft.cache.private import build_folder
from weft.errors import UserError

# Both sides: no C++ library is used, so neither exceptions nor type information are needed.
COMMON_FLAGS = ("-std=c++17", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-stack-protector")
LINK_FLAGS = ("-shared", "-nostdlib")
# GCC passes that take a sixth of the build time without a measurable gain here. Other compilers do not have these names. And the loop vectorizer: with it,
# kernels that GCC 12 built at -O2 lost sums of integers down columns where a thread has two (tests/emulator/test_integer_columns.py).
GCC_LEAVES_OUT = (
    "-fno-gcse", "-fno-schedule-insns2", "-fno-tree-slp-vectorize", "-fno-tree-dominator-opts", "-fno-tree-pta", "-fira-region=one", "-fno-tree-vectorize",
)  # fmt: skip

TIME_LIMIT_S = 900.0
"""The largest kernels of the tests take a few seconds; the limit is for a compiler that hangs."""

_PROBE = 'extern "C" int weft_probe() { return 42; }\n'
_ITS_OWN_END = re.compile(r"internal compiler error|Killed signal|virtual memory exhausted|out of memory|No space left|cannot allocate memory", re.IGNORECASE)


class NoCompiler(UserError):
    code = "W410"
    what = "the emulator needs a C++17 compiler, and none was found (tried {tried})"
    fix = "install g++ or clang++, or `pip install ziglang`, or set CXX to a compiler"


class CompilerUnusable(UserError):
    code = "W413"
    what = "the C++ compiler {compiler} does not work: {reason}"
    fix = "set CXX to a C++17 compiler that compiles a small program, or unset it for g++, clang++ or the ziglang package; look for free memory and disk space"


@dataclass(frozen=True)
class Build:
    """The result of a compilation: the shared library, or None and the compiler's output."""

    code: bytes | None
    output: str


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler: its command, the flags that depend on it and on this processor, and the processors that its code runs on.

    version: what `--version` prints, part of every cache key. problem: why it cannot be started.
    """

    command: tuple[str, ...]
    machine_flags: tuple[str, ...]
    target: str = "any processor of this architecture"
    kernel_flags: tuple[str, ...] = ()
    version: str = ""

    def build(self, flags: list[str], source: str, *, separate_link: bool = False, place: Path | None = None) -> Build:
        """Compile a text to a shared library. `place`: the folder for temporary files, None for the system's.

        `separate_link`: for instrumented code, because a compiler that links with the sanitizer's flag adds its runtime. Errors: CompilerUnusable if the
        compiler itself does not work.
        """
        try:
            with build_folder(place) as folder:
                made = self._build(folder, flags, source, separate_link)
                if made.code is None and not self._compiles(folder):
                    raise CompilerUnusable(compiler=self.command[0], reason=made.output[-2000:].strip() or "it says nothing")
        except OSError as error:
            raise CompilerUnusable(compiler=self.command[0], reason=f"no folder for temporary files: {error}") from None
        if made.code is None and _ITS_OWN_END.search(made.output):
            raise CompilerUnusable(compiler=self.command[0], reason=made.output[-2000:].strip())
        return made

    def _build(self, folder: Path, flags: list[str], source: str, separate_link: bool) -> Build:
        text, whole, part = folder / "kernel.cpp", folder / "whole.so", folder / "part.o"
        text.write_text(source, encoding="utf-8", errors="surrogatepass")
        flags = [*self.machine_flags, *COMMON_FLAGS, *flags, "-x", "c++", str(text)]
        if separate_link:
            output = self._run([*flags, "-c", "-o", str(part)], folder)
            output += self._run([*LINK_FLAGS, str(part), "-o", str(whole)], folder) if part.exists() else ""
        else:
            output = self._run([*flags, *LINK_FLAGS, "-o", str(whole)], folder)
        try:
            code = whole.read_bytes()
        except FileNotFoundError:
            return Build(None, output or "it wrote no file")
        return Build(code, output) if is_library(code) else Build(None, f"{output}it wrote {len(code)} bytes that are not a shared library")

    def _compiles(self, folder: Path) -> bool:
        (folder / "whole.so").unlink(missing_ok=True)
        (folder / "part.o").unlink(missing_ok=True)
        return self._build(folder, [], _PROBE, False).code is not None

    def _run(self, arguments: list[str], folder: Path) -> str:
        """Run the compiler and return its output. A file that a failed run left is removed."""
        environment = {**os.environ, "TMPDIR": str(folder)}
        try:
            done = subprocess.run(
                [*self.command, *arguments], capture_output=True, check=False, env=environment, stdin=subprocess.DEVNULL, timeout=TIME_LIMIT_S
            )
        except (OSError, ValueError) as error:
            return f"{error}\n"
        except subprocess.TimeoutExpired:
            return f"it did not end within {TIME_LIMIT_S:.0f} s\n"
        output = (done.stdout + done.stderr).decode(errors="replace")
        if done.returncode:
            Path(arguments[-1]).unlink(missing_ok=True)
            output += f"it was ended by {_signal_name(-done.returncode)}\n" if done.returncode < 0 else ""
        return output


def is_library(code: bytes) -> bool:
    """Tell whether bytes begin like a shared library: ELF or Mach-O."""
    return len(code) > 64 and (code.startswith(b"\x7fELF") or code[:4] in (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe"))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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
    # Clash protection touches every page of a large frame, so that an overflow hits the guard page and not other memory.
    return ("-fstack-clash-protection", *(["-march=x86-64-v3"] if wanted <= set(features) else []))


def _version(command: list[str]) -> str:
    """Return the compiler's version string. Errors: CompilerUnusable."""
    argument = "version" if Path(command[0]).stem == "zig" else "--version"
    asked = [command[0], argument] if argument == "version" else [*command, argument]
    try:
        done = subprocess.run(asked, capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=60)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise CompilerUnusable(compiler=command[0], reason=error) from None
    if done.returncode:
        words = (done.stdout + done.stderr).decode(errors="replace").strip()[-500:]
        raise CompilerUnusable(compiler=command[0], reason=f"`{' '.join(asked)}` ends with status {done.returncode}: {words}")
    return done.stdout.decode(errors="replace")


def _toolchain(command: list[str]) -> Toolchain:
    version = _version(command)
    if Path(command[0]).stem == "zig":  # has its own names of processors; its default is the present one, on which the kernel will run
        features = hashlib.sha256("\0".join(_processor_features()).encode()).hexdigest()[:24]
        return Toolchain(tuple(command), (), target=features, version=version)
    is_gcc = "g++" in Path(command[0]).name and "clang" not in Path(command[0]).name and platform.system() == "Linux"  # elsewhere g++ may be clang
    return Toolchain(tuple(command), _machine_flags(), kernel_flags=GCC_LEAVES_OUT if is_gcc else (), version=version)


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise CompilerUnusable(compiler=command, reason=error) from None


@functools.lru_cache(maxsize=None)
def find_toolchain(cxx: str | None = None) -> Toolchain:
    """Return the compiler to use: `cxx` or $CXX, g++, clang++, else the ziglang wheel.

    Errors: NoCompiler; CompilerUnusable if a named one does not start.
    """
    asked = (cxx or os.environ.get("CXX") or "").strip()
    if asked:
        command = _words(asked)
        if not command or not shutil.which(command[0]):
            raise CompilerUnusable(compiler=asked, reason="there is no such program")
        return _toolchain(command)
    for name in ("g++", "clang++"):
        if shutil.which(name):
            return _toolchain([name])
    spec = importlib.util.find_spec("ziglang")
    if spec and spec.origin:
        return _toolchain([str(Path(spec.origin).parent / "zig"), "c++"])
    raise NoCompiler(tried="g++, clang++, ziglang")
