"""Compiling the emulator runtime and emulated kernels, and keeping the results in the disk cache.

A built library is a byte string: what was checked is what is loaded (`loading`), whatever happens to a file meanwhile.
Read first: `build_kernel`.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from weft.cache import Artefact, artefact_key, default_cache
from weft.cache.failures import keep_failure
from weft.emulator.toolchain import COMMON_FLAGS, LINK_FLAGS, Build, CompilerUnusable, NoCompiler, Toolchain, find_toolchain, is_library
from weft.errors import InternalError, UserError

HERE = Path(__file__).resolve().parent
RUNTIME = HERE / "runtime"

# Contraction as in ptxas; integer overflow wraps and float* may alias int*, as the generated text requires.
KERNEL_FLAGS = ("-O2", "-w", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fwrapv", "-fno-strict-aliasing")
# The inlined context switch writes below the stack pointer, so there must be no red zone.
RUNTIME_FLAGS = ("-O2", "-w", "-fvisibility=hidden", "-fno-threadsafe-statics", "-fno-strict-aliasing")
# The sanitizer's instrumentation without its runtime; runtime/raw_net.cpp has the hooks.
RAW_NET_FLAGS = ("-fsanitize=thread", "-DWEFT_RAW_NET=1")


class KernelDoesNotCompile(InternalError):
    code = "W411"
    what = "the kernel text does not compile for the emulator with {compiler}; the text is in {path}\n{output}"


class TextDoesNotCompile(UserError):
    code = "W414"
    what = "the kernel's text does not compile with {compiler}\n{output}"
    fix = "correct the text; `blocks` of the launch names the parts of the device library that it uses"


class RuntimeDoesNotCompile(InternalError):
    code = "W412"
    what = "the emulator runtime does not compile with {compiler}\n{output}"


@dataclass(frozen=True)
class Built:
    """A shared library. `name` contains the digest of its inputs."""

    name: str
    code: bytes
    from_cache: bool = False


@functools.lru_cache(maxsize=None)
def _folder_text(folder: Path) -> str:
    return "\0".join(p.name + "\0" + p.read_text() for p in sorted(folder.iterdir()) if p.suffix in (".h", ".cpp"))


def _kept(
    kind: str, toolchain: Toolchain, flags: list[str], texts: tuple[str, ...], build: Callable[[Path | None], Build], failed: Callable[[str], Exception]
) -> Built:
    """Return a library from the cache, or build it and keep it there."""
    key = artefact_key("emulator", kind, repr((toolchain, COMMON_FLAGS, LINK_FLAGS, flags)), *texts)
    name = f"{kind}-{key[:16]}"

    def make() -> tuple[Built, Artefact]:
        place = cache.temporary_folder if cache is not None and cache.is_usable() else None
        try:
            made = build(place)
        except CompilerUnusable:
            if place is None:
                raise
            made = build(None)  # the cache's disk may be full
        if made.code is None:
            raise failed(made.output)
        return Built(name, made.code), Artefact({"kind": kind, "compiler": toolchain.version}, {"library": made.code})

    def read(artefact: Artefact) -> Built | None:
        code = artefact.blobs.get("library", b"")
        return Built(name, code, from_cache=True) if is_library(code) else None

    cache = default_cache()
    return make()[0] if cache is None else cache.get_or_make(key, read, make)


def build_runtime(toolchain: Toolchain | None = None) -> Built:
    """Return the compiled runtime, building it on first use (a few seconds).

    Errors: RuntimeDoesNotCompile, NoCompiler, CompilerUnusable.
    """
    toolchain = toolchain or find_toolchain()
    flags = [*RUNTIME_FLAGS, *(["-mno-red-zone"] if platform.machine() in ("x86_64", "AMD64") else [])]
    source = f'#include "{RUNTIME / "runtime.cpp"}"\n'

    def failed(output: str) -> Exception:
        return RuntimeDoesNotCompile(compiler=toolchain.command[0], output=output)

    return _kept("runtime", toolchain, flags, (_folder_text(RUNTIME), _folder_text(HERE)), lambda place: toolchain.build(flags, source, place=place), failed)


def build_kernel(source: str, *, check_races: bool, raw_net: bool = False, toolchain: Toolchain | None = None, is_foreign: bool = False) -> Built:
    """Return the compiled kernel of a translation unit. `raw_net`: it also reports accesses that bypass the primitives to the runtime.

    Errors: KernelDoesNotCompile with the compiler's message, after writing the text to a file; TextDoesNotCompile for a foreign text; NoCompiler,
    CompilerUnusable.
    """
    toolchain = toolchain or find_toolchain()
    defined = ["-DWEFT_EMULATOR=1", *(["-DWEFT_CHECK_RACES=1"] if check_races else [])]
    flags = [*KERNEL_FLAGS, *toolchain.kernel_flags, *defined, *(RAW_NET_FLAGS if raw_net else [])]

    def build(place: Path | None) -> Build:
        return toolchain.build([*flags, "-I", str(HERE)], source, separate_link=raw_net, place=place)

    def failed(output: str) -> Exception:
        if is_foreign:
            return TextDoesNotCompile(compiler=toolchain.command[0], output=output[:6000])
        path = keep_failure("emulated", source, {"kernel.cpp": source, "compiler.log": output})
        return KernelDoesNotCompile(compiler=toolchain.command[0], path=path, output=output[:6000])

    return _kept("kernel", toolchain, flags, (_folder_text(HERE), source), build, failed)


__all__ = ["Built", "KernelDoesNotCompile", "NoCompiler", "RuntimeDoesNotCompile", "build_kernel", "build_runtime", "find_toolchain"]
