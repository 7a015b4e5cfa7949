"""The environment variables NVFUSER_DUMP, NVFUSER_ENABLE, NVFUSER_DISABLE and NVFUSER_PROF, for programs that import `nvfuser_direct`.

Owns what their options mean here: a dump or a setting of weft's, or nothing. `weft` by itself does not read them; its own variables win. Read first: `take`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from ..errors import UserError
from ..options import DISABLE_NAMES, ENABLE_NAMES, add_to_environment, current, nearest, settings_of_enabled, split_option_list

DUMPS: dict[str, str] = {
    "cuda_kernel": "cuda", "cuda_full": "cuda", "cuda_to_file": "cuda", "python_definition": "python", "fusion_ir": "fusion", "fusion_ir_math": "fusion",
    "fusion_ir_original": "fusion", "fusion_ir_concretized": "fusion", "fusion_ir_preseg": "fusion", "fusion_ir_presched": "fusion",
    "kernel_ir": "kernel_ir", "launch_param": "launch", "fusion_args": "launch", "kernel_args": "launch", "dynamic_shared_memory": "launch",
    "scheduler_params": "scheduler", "scheduler_verbose": "scheduler", "segmented_fusion": "segments", "segmenter_logging": "segments", "ptx": "ptx",
    "cubin": "cubin", "sass": "sass", "sass_to_file": "sass", "ptxas_verbose": "resources", "occupancy": "resources", "compile_params": "resources",
}  # fmt: skip
"""nvFuser's dumps, and the kind of `WEFT_DUMP` that tells the same."""

NO_DUMPS = (
    "host_ir", "host_ir_jit", "buffer_reuse_verbose", "transform_propagator", "index_type", "ca_map", "bank_conflict", "perf_debug_verbose",
)  # fmt: skip
"""Dumps of what weft does not have: taken, and nothing is written."""

PROFILES = ("enable", "enable.nocupti", "print", "print.nocupti", "print.verbose")
VARIABLES = ("NVFUSER_DUMP", "NVFUSER_ENABLE", "NVFUSER_DISABLE", "NVFUSER_PROF")


class UnknownVariableOption(UserError):
    code = "W194"
    what = "{variable}: there is no option {name!r}"
    fix = "{nearest}; all options: {known}"


def _names(environ: Mapping[str, str], variable: str, known: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the options of a variable with their arguments. Errors: UnknownVariableOption."""
    found = split_option_list(environ.get(variable, ""))
    known = list(known)
    for name in found:
        if name not in known:
            raise UnknownVariableOption(variable=variable, name=name, nearest=nearest(name, known), known=", ".join(known))
    return found


def take(environ: Mapping[str, str] = os.environ) -> None:
    """Do what nvFuser's variables ask for, from now on. Errors: UnknownVariableOption."""
    if not any(environ.get(variable) for variable in VARIABLES):
        return
    dumps = _names(environ, "NVFUSER_DUMP", (*DUMPS, *NO_DUMPS))
    enabled, disabled = _names(environ, "NVFUSER_ENABLE", ENABLE_NAMES), _names(environ, "NVFUSER_DISABLE", DISABLE_NAMES)
    settings: dict[str, object] = settings_of_enabled(enabled)
    if dumps:
        settings["dump"] = list(dict.fromkeys([*current().dump, *(DUMPS[name] for name in dumps if name in DUMPS)]))
        if any(name.endswith("_to_file") for name in dumps):
            settings["dump_dir"] = os.getcwd()
    if "nvrtc_caching" in disabled:
        settings["cache"] = False
    add_to_environment(settings, "nvFuser's variables", disabled)
    profiles = _names(environ, "NVFUSER_PROF", PROFILES)
    if profiles:
        from .profile import profile_all

        profile_all(prints=any(name.startswith("print") for name in profiles), each_kernel="print.verbose" in profiles)
