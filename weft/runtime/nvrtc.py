"""CUDA C++ text -> machine code (cubin) through NVRTC. Needs no GPU and no driver.

Owns finding NVRTC, its options, compiler errors and the cached compilation. NVRTC's C interface is called with ctypes: the
seven functions used are stable since CUDA 11.2, `import` costs 2 ms (cuda.bindings.nvrtc: 55 ms, cuda.core: 180 ms), and
torch alone is enough to have a compiler, since its wheels bring NVRTC along.

Versions. The output is machine code for one compute capability, never PTX. By CUDA's minor version compatibility, machine
code of NVRTC 13.x loads on every driver of CUDA 13 or later, older ones included (13.5's on a 13.0 driver); only PTX would
need a driver as new as the compiler. So of several NVRTCs the best is one of the driver's major version, then an older one;
a newer major version is the last resort, and the loader then says what is wrong.
Read first: `compile_cubin`, and `compile_or_load` for the cached form.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import importlib.util
import os
import re
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from weft import arch as chips
from weft import forking
from weft.cache import Artefact, DiskCache, artefact_key, default_cache
from weft.cache.failures import keep_failure
from weft.errors import InternalError, WeftError
from weft.options import Options, current
from weft.runtime.resources import Resources, resources_of


class NvrtcMissing(WeftError):
    code = "W740"
    what = "NVRTC was not found; looked at: {looked}"
    fix = "pip install nvidia-cuda-nvrtc (CUDA 13; nvidia-cuda-nvrtc-cu12 for CUDA 12), or set WEFT_NVRTC to the path of libnvrtc.so"


class NvrtcTooOld(WeftError):
    code = "W741"
    what = "NVRTC {version} ({path}) cannot compile for {target}; it knows sm_{known}"
    fix = "pip install --upgrade nvidia-cuda-nvrtc, or set WEFT_NVRTC to a newer libnvrtc.so"


class CompilationFailed(InternalError):
    code = "W742"
    what = "NVRTC {version} does not compile kernel {entry} for {target} ({status}); text: {path}, repro: python {repro}\n{log}"


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel's machine code. `log` holds the compiler's warnings, and ptxas's report when that was asked for.

    `ptx` is empty unless it was requested. `kept`: its key in the disk cache, for `kept_code`; "" if it is not there.

    Units: `seconds` is the time in NVRTC, 0.0 when the code came from the disk cache (`from_cache`).
    """

    cubin: bytes
    log: str
    seconds: float
    resources: Resources
    from_cache: bool = False
    ptx: str = ""
    kept: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible location of NVRTC; `major` is 0 if the name does not contain it."""

    path: str
    origin: str
    major: int


def candidates(setting: str = "") -> list[Candidate]:
    """List the NVRTC libraries that exist, best first: `setting` alone if given, else wheels (torch's included), toolkits,
    the system's; within these, those that fit the driver first (see the module's text).
    """
    if setting:
        return [Candidate(setting, "WEFT_NVRTC", _major(setting))]
    found: list[Candidate] = []
    for package in ("nvidia", "torch"):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for pattern in ("*/lib/libnvrtc.so.*", "lib/libnvrtc*.so*"):
                found += _matches(os.path.join(folder, pattern), f"{package} wheel")
    roots = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    roots += [sys.prefix, "/usr/local/cuda", *sorted(glob.glob("/usr/local/cuda-*"), reverse=True)]
    places = [os.path.join(root, folder) for root in roots for folder in ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")]
    once: dict[str, str] = {}
    for place in places:
        once.setdefault(os.path.realpath(place), place)  # a toolkit has several paths to one folder of a thousand files
    for place in once.values():
        found += _matches(os.path.join(place, "libnvrtc.so.*[0-9]"), "CUDA toolkit")
    found += [Candidate(f"libnvrtc.so.{major}", "system", major) for major in (13, 12)]
    unique = {os.path.realpath(c.path) if os.path.isabs(c.path) else c.path: c for c in reversed(found)}
    return sorted(reversed(unique.values()), key=_preference)


def _matches(pattern: str, origin: str) -> list[Candidate]:
    paths = [path for path in glob.glob(pattern) if "builtins" not in os.path.basename(path)]
    return [Candidate(path, origin, _major(path)) for path in sorted(paths, reverse=True)]


def _major(path: str) -> int:
    match = re.search(r"\.so\.(\d+)", os.path.basename(path))
    return int(match[1]) if match else 0


def _preference(candidate: Candidate) -> tuple[bool, int]:
    """Sort key: not newer than the driver, then the newest; sorting is stable, so equals stay in the order of `candidates`."""
    driver = driver_cuda_version()
    return (driver is not None and candidate.major > driver[0], -candidate.major)


@functools.cache
def driver_cuda_version() -> tuple[int, int] | None:
    """The CUDA version of the driver, such as (13, 0); None without a driver. The driver reports it before it is initialised."""
    try:
        library = chips.open_driver()
    except chips.DriverMissing:
        return None
    version = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value // 1000, version.value % 1000 // 10


class Nvrtc:
    """A loaded NVRTC. `identity` distinguishes builds without loading the library, for cache keys."""

    def __init__(self, candidate: Candidate, library: ctypes.CDLL) -> None:
        self.path = candidate.path
        self.origin = candidate.origin
        self.library = library
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)
        library.nvrtcGetErrorString.restype = ctypes.c_char_p

    @property
    def version_text(self) -> str:
        return f"{self.version[0]}.{self.version[1]}"

    @functools.cached_property
    def capabilities(self) -> tuple[int, ...]:
        """Compute capabilities that it compiles for: 90 for 9.0."""
        count = ctypes.c_int()
        self.library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        values = (ctypes.c_int * count.value)()
        self.library.nvrtcGetSupportedArchs(values)
        return tuple(values)

    def error_text(self, status: int) -> str:
        return (self.library.nvrtcGetErrorString(status) or b"unknown error").decode()


_lock = forking.lock()
_loaded: dict[str, Nvrtc] = {}
_first_choice: dict[str, Candidate] = {}


def load(setting: str | None = None) -> Nvrtc:
    """Load the best NVRTC that loads, once per process.

    Errors: NvrtcMissing.
    """
    setting = current().nvrtc if setting is None else setting
    found = _loaded.get(setting)
    if found is None:
        with _lock:
            found = _loaded.get(setting)
            if found is None:
                found = _loaded[setting] = _load(setting)
    return found


def _load(setting: str) -> Nvrtc:
    looked = []
    for candidate in candidates(setting):
        try:
            _open_builtins(candidate.path)
            library = _open(candidate.path)
        except OSError as error:
            looked.append(f"{candidate.path} ({error})")
            continue
        _first_choice[setting] = candidate
        return Nvrtc(candidate, library)
    raise NvrtcMissing(looked="; ".join(looked) or "no place")


def _open(path: str) -> ctypes.CDLL:
    """Load a library without the interpreter lock, which CDLL holds: NVRTC's 140 MB take 0.1 s if they are not in memory yet, and other threads can run
    meanwhile."""
    dlopen = None if sys.platform == "win32" else getattr(ctypes.CDLL(None), "dlopen", None)
    if dlopen is not None:
        dlopen.argtypes, dlopen.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
        dlopen(os.fsencode(path), os.RTLD_NOW)  # a failure is repeated below, where its reason is reported
    return ctypes.CDLL(path)


def _open_builtins(path: str) -> None:
    """Load the library that NVRTC searches by name when it compiles, because the wheel of 13.0 does not search its own folder."""
    for builtins in _builtins_beside(path) if os.path.isabs(path) else []:
        if os.path.basename(builtins).startswith("libnvrtc-builtins.so."):
            with contextlib.suppress(OSError):  # one of another version, or a broken one: NVRTC reports what is missing
                _open(builtins)


def _builtins_beside(path: str) -> list[str]:
    return glob.glob(os.path.join(glob.escape(os.path.dirname(os.path.realpath(path))), "libnvrtc-builtins*.so*"))


_identity_lock = forking.lock()


def identity(setting: str | None = None) -> str:
    """Return the identity of the NVRTC that would compile, without loading it if its file is enough: a cached kernel needs no compiler.

    The identity is the version and the size of the file: `libnvrtc-builtins.so.13.5` beside it carries the version.
    Errors: NvrtcMissing.
    """
    setting = current().nvrtc if setting is None else setting
    candidate = _first_choice.get(setting)
    if candidate is None:
        with _identity_lock:  # threads that want it at the same time wait for the first
            candidate = _first_choice.get(setting)
            if candidate is None:
                candidate = _first_choice[setting] = next((c for c in candidates(setting) if os.path.exists(c.path)), None) or _loadable(setting)
    return _identity_of(candidate.path) or f"{load(setting).version_text}"


def _loadable(setting: str) -> Candidate:
    nvrtc = load(setting)
    return Candidate(nvrtc.path, nvrtc.origin, nvrtc.version[0])


@functools.cache
def _identity_of(path: str) -> str:
    real = os.path.realpath(path)
    versions = sorted({match[1] for name in _builtins_beside(path) if (match := re.search(r"\.so\.(\d+\.\d+)", os.path.basename(name)))})
    if not os.path.isabs(path) or not versions:
        return ""
    return f"{'+'.join(versions)}/{os.path.getsize(real)}"


_MINIMAL_SINCE = (12, 4)
"""NVRTC's `-minimal` leaves out textures, surfaces and the device runtime, which no kernel here uses: 3 ms less of 23 for a
small kernel (NVRTC 13.5, 2 cores, November 2026)."""


def command_line(arch: str, *, max_registers: int | None, line_info: bool = False, fast_math: bool = False, fmad: bool = True) -> list[str]:
    """Return NVRTC's options. `max_registers` is left out from 255 on, the hardware's limit.

    `-v` is always given: it costs nothing, and only ptxas reports spills.
    """
    options = [f"-arch={arch}", "-std=c++17", "-default-device", f"--fmad={str(fmad).lower()}", "--ptxas-options=-v"]
    if max_registers is not None and max_registers < 255:
        options.append(f"-maxrregcount={max_registers}")
    if line_info:
        options.append("-lineinfo")
    if fast_math:
        options.append("--use_fast_math")
    return options


def compile_cubin(
    source: str,
    entry: str,
    arch: str,
    *,
    max_registers: int | None = None,
    line_info: bool = False,
    ptxas_verbose: bool = False,
    fast_math: bool = False,
    fmad: bool = True,
    keep_ptx: bool = False,
    use_cache: bool = True,
) -> Compiled:
    """Compile one translation unit for one compute capability.

    use_cache: NVRTC may use its own cache, which has no ptxas report; spills and barriers are then known only if the machine code shows them.

    Units:  `arch` as NVRTC spells it: "sm_90a"; `max_registers` per thread, None for the compiler's choice.
    Errors: CompilationFailed, with the text and a repro script left on disk; NvrtcMissing, NvrtcTooOld.
    """
    nvrtc = load()
    capability = re.match(r"sm_(\d+)", arch)
    if capability and nvrtc.capabilities and int(capability[1]) not in nvrtc.capabilities:
        raise NvrtcTooOld(version=nvrtc.version_text, path=nvrtc.path, target=arch, known=", sm_".join(map(str, nvrtc.capabilities)))
    arguments = command_line(arch, max_registers=max_registers, line_info=line_info, fast_math=fast_math, fmad=fmad)
    if nvrtc.version >= _MINIMAL_SINCE:
        arguments.append("-minimal")
    start = time.perf_counter()
    run = functools.partial(_run if use_cache else _run_anew, nvrtc.library, source, entry, arguments, keep_ptx)
    status, log, cubin, ptx = run()
    seconds = time.perf_counter() - start
    if status or not cubin:
        keywords: dict[str, object] = {"max_registers": max_registers, "line_info": line_info, "fast_math": fast_math, "fmad": fmad}
        path, repro = _write_repro(source, entry, arch, keywords, log, nvrtc)
        raise CompilationFailed(
            version=nvrtc.version_text, entry=entry, target=arch, status=nvrtc.error_text(status), path=path, repro=repro, log=log.strip()
        )
    resources = resources_of(cubin, entry, log)
    if resources.spill_store_bytes is None and use_cache:  # the kernel has a stack, and no report says how much of it is spills
        resources = resources_of(cubin, entry, _run_anew(nvrtc.library, source, entry, arguments, keep_ptx)[1])
    if not ptxas_verbose:
        log = _without_report(log)
    return Compiled(cubin, log, seconds, resources, ptx=ptx)


def _run(library: ctypes.CDLL, source: str, entry: str, arguments: list[str], keep_ptx: bool) -> tuple[int, str, bytes, str]:
    """Status, log, machine code and PTX of one NVRTC run. ctypes releases the interpreter lock, so threads compile concurrently."""
    program = ctypes.c_void_p()
    status = library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), f"{entry}.cu".encode(), 0, None, None)
    if status:
        return status, "", b"", ""
    try:
        options = (ctypes.c_char_p * len(arguments))(*(argument.encode() for argument in arguments))
        status = library.nvrtcCompileProgram(program, len(arguments), options)
        log = _fetch(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
        cubin = b"" if status else _fetch(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
        ptx = b"" if status or not keep_ptx else _fetch(library.nvrtcGetPTXSize, library.nvrtcGetPTX, program)
        return status, _text(log), cubin, _text(ptx)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _run_anew(library: ctypes.CDLL, source: str, entry: str, arguments: list[str], keep_ptx: bool) -> tuple[int, str, bytes, str]:
    """Like `_run`, without NVRTC's own cache. An NVRTC that does not know the option has no cache."""
    found = _run(library, source, entry, [*arguments, "--no-cache"], keep_ptx)
    return _run(library, source, entry, arguments, keep_ptx) if found[0] and "no-cache" in found[1] else found


def compile_nothing() -> None:
    """Compile an empty kernel, because NVRTC loads its second library and initialises itself at the first compilation. Without its own cache, for which it
    would initialise the driver. An NVRTC that does not know this option stops at it; the first kernel then takes some 10 ms more.
    Errors: NvrtcMissing.
    """
    nvrtc = load()
    _run(nvrtc.library, 'extern "C" __global__ void empty() {}', "empty", [f"-arch=sm_{min(nvrtc.capabilities)}", "--no-cache"], keep_ptx=False)


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def _fetch(size_of: ctypes._NamedFuncPointer, get: ctypes._NamedFuncPointer, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    if size_of(program, ctypes.byref(size)) or not size.value:
        return b""
    buffer = ctypes.create_string_buffer(size.value)
    return b"" if get(program, buffer) else buffer.raw


_REPORT_LINE = re.compile(r"^(?:ptxas info\s*:|ptxas\s+\.\s|\s+\d+ bytes stack frame|Function properties for)(?!.*\b[Ww]arning\b)")


def _without_report(log: str) -> str:
    return "\n".join(line for line in log.splitlines() if line.strip() and not _REPORT_LINE.match(line))


_REPRO = '''"""Repeats a failed compilation: NVRTC {version} ({path}), target {arch}.

With a CUDA toolkit instead: nvcc -cubin {nvcc_options} -o /dev/null {kernel}
"""

from pathlib import Path

from weft.runtime.nvrtc import compile_cubin

source = Path(__file__).with_name({kernel!r}).read_text()
compiled = compile_cubin(source, {entry!r}, {arch!r}, {keywords})
print(compiled.log, compiled.resources)
'''


def _write_repro(source: str, entry: str, arch: str, keywords: dict[str, object], log: str, nvrtc: Nvrtc) -> tuple[Path | str, Path | str]:
    """Leave kernel.cu, nvrtc.log and repro.py in a folder named after the kernel; return the paths of text and script.

    Errors: none; if they cannot be written, the returned paths say why.
    """
    nvcc_options = [f"-arch={arch}", "-std=c++17", f"-fmad={str(keywords['fmad']).lower()}"]
    if keywords["max_registers"] is not None:
        nvcc_options.append(f"-maxrregcount={keywords['max_registers']}")
    repro = _REPRO.format(
        version=nvrtc.version_text,
        path=nvrtc.path,
        arch=arch,
        entry=entry,
        kernel="kernel.cu",
        nvcc_options=" ".join(nvcc_options),
        keywords=", ".join(f"{name}={value!r}" for name, value in keywords.items()),
    )
    kernel = keep_failure(entry, source, {"kernel.cu": source, "nvrtc.log": log, "repro.py": repro})
    return kernel, kernel.with_name("repro.py") if isinstance(kernel, Path) else "(not written)"


def compile_or_load(
    source: str,
    entry: str,
    arch: str,
    *,
    max_registers: int | None = None,
    fmad: bool = True,
    options: Options | None = None,
    cache: DiskCache | None = None,
) -> Compiled:
    """Return a kernel's machine code from the disk cache, compiling it if it is not there.

    Line information, fast math, the report and the cache's place come from `options` (default: those in force); `cache`
    replaces the place. A hit does not load NVRTC.
    Errors: those of `compile_cubin`. A problem with the cache folder is not an error: the kernel is then compiled every time.
    """
    options = options or current()
    cache = cache or default_cache(options)
    keep_ptx = options.is_dumped("ptx", kernel=entry)  # PTX is not kept on disk
    arguments = command_line(arch, max_registers=max_registers, line_info=options.device_line_info, fast_math=options.fast_math, fmad=fmad)

    def build() -> Compiled:
        return compile_cubin(
            source,
            entry,
            arch,
            max_registers=max_registers,
            line_info=options.device_line_info,
            ptxas_verbose=True,
            fast_math=options.fast_math,
            fmad=fmad,
            keep_ptx=keep_ptx,
        )

    def make() -> tuple[Compiled, Artefact]:
        compiled = build()
        return compiled, _to_artefact(compiled, entry, arch)

    if cache is None:
        compiled = build()
    else:
        compiler = identity(options.nvrtc)
        key = artefact_key("cubin", source, entry, arch, *arguments, compiler)
        if keep_ptx:
            compiled, artefact = make()
            cache.put(key, artefact)
        else:
            compiled = cache.get_or_make(key, _from_artefact, make)
        compiled = replace(compiled, kept=f"{key} {compiler}")
    return compiled if options.ptxas_verbose else replace(compiled, log=_without_report(compiled.log))


def kept_code(kept: str, options: Options) -> Compiled | None:
    """Return machine code by the key `Compiled.kept` of another process, without its source text. None if it is no longer in the cache, or if another NVRTC
    would compile now. Errors: NvrtcMissing.
    """
    key, _, compiler = kept.partition(" ")
    cache = default_cache(options)
    if not key or cache is None or identity(options.nvrtc) != compiler:
        return None
    artefact = cache.get(key)
    compiled = None if artefact is None else _from_artefact(artefact)
    return None if compiled is None else replace(compiled, log=_without_report(compiled.log), kept=kept)


def _to_artefact(compiled: Compiled, entry: str, arch: str) -> Artefact:
    metadata = {"entry": entry, "arch": arch, "log": compiled.log, "seconds": compiled.seconds, "resources": compiled.resources.to_json()}
    return Artefact(metadata, {"cubin": compiled.cubin})


def _from_artefact(artefact: Artefact) -> Compiled | None:
    """Return the content of an entry, or None if it is not in the format of `_to_artefact`."""
    cubin, log = artefact.blobs.get("cubin"), artefact.metadata.get("log")
    try:
        resources = Resources.from_json(artefact.metadata["resources"])  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError):
        return None
    if not cubin or not cubin.startswith(b"\x7fELF") or not isinstance(log, str):
        return None
    return Compiled(cubin, log, 0.0, resources, from_cache=True)
