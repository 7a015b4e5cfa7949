"""Names and records of the API: exports, enumerations, params, versions, and what is named but not supported."""

import enum
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import weft
from weft import DataType, ParallelType, SchedulerType, Unsupported
from weft.api import enums

ROOT = Path(__file__).parents[2]
MEMBERS = {
    "DataType": "Double Float Half Int Int32 UInt64 Index Bool BFloat16 Float8_e4m3fn Float8_e5m2 Float8_e8m0fnu Float4_e2m1fn Float4_e2m1fn_x2 "
    "ComplexFloat ComplexDouble Null",
    "ParallelType": "mesh_x mesh_y mesh_z grid_x grid_y grid_z block_x block_y block_z mma serial tma unroll unswitch vectorize stream",
    "SchedulerType": "none no_op pointwise matmul reduction inner_persistent inner_outer_persistent outer_persistent transpose expr_eval resize greedy",
    "LoadStoreOpType": "set load_matrix cp_async tma",
    "MemoryType": "tensor local shared global symmetric",
    "CacheOp": "unspecified all_levels streaming global",
    "IdMappingMode": "exact almost_exact broadcast permissive loop",
    "CommunicatorBackend": "nccl ucc cuda",
    "MatmulTilingStrategy": "one_tile_per_cta distribute_tiles_across_sms distribute_stages_across_sms",
    "MatmulBufferingLoopLevel": "cta_tiles warp_tiles",
    "MatmulCircularBufferingStrategy": "pipelined warp_specialized",
    "MatmulTileRasterizationOrder": "column_major row_major",
    "MmaMacroArch": "no_mma volta turing ampere hopper blackwell_1cta blackwell_2cta",
}  # fmt: skip


@pytest.mark.parametrize("name", MEMBERS)
def test_enumerations_have_nvfusers_members(name):
    kind = getattr(weft, name)
    assert issubclass(kind, enum.Enum) and not issubclass(kind, int)
    for member in MEMBERS[name].split():
        assert isinstance(getattr(kind, member), kind)


def test_no_member_is_false_and_entries_lists_them():
    """`not SchedulerType.none` is False, as it is for nvFuser's enumerations."""
    assert all(bool(member) for kind in enums.ENUMS for member in kind)
    entries = getattr(SchedulerType, "__entries")
    assert entries["pointwise"][0] is SchedulerType.pointwise and set(entries) == set(MEMBERS["SchedulerType"].split())
    assert "global" in getattr(weft.MemoryType, "__entries")


def test_every_public_name_can_be_loaded():
    for name in set(weft.__all__) - {"FusionExecutorCache", "KernelExecutor"}:
        assert getattr(weft, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        weft.nothing  # noqa: B018


def test_importing_a_lower_layer_does_not_import_torch():
    code = "import sys, weft, weft.dtypes, weft.ir.structure; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


# ---------------------------------------------------------------- the package nvfuser_direct
COMPAT = """
import importlib.util, sys, warnings
warnings.simplefilter("error")
{before}
import nvfuser_direct
from nvfuser_direct import *
from nvfuser_direct import FusionDefinition, LRUCache, DataType, TensorView, PythonProfiler, version, LruFusionCache, compute_tensor_descriptor
from nvfuser_direct import IdMappingMode, ParallelType, Merge, Split, BroadcastOp, SqueezeOp, ReshapeOp, LoadStoreOpType, MemoryType, CompileParams
from nvfuser_direct import SchedulerType, CommunicatorBackend, execute_with_dtensors, idm, schedule, ops, multidevice, nvf_cutlass, _C_DIRECT
from nvfuser_direct.nvfuser_direct_version import Version, NvfuserVersion, __version__
from nvfuser_direct.pytorch_utils import torch_dtype_to_nvfuser_dtype, python_scalar_to_nvfuser_dtype, retry_on_oom_or_skip_test
from nvfuser_direct.pytorch_utils import DEVICE_PROPERTIES, get_device_properties
from nvfuser_direct.benchmark_utils import FusionProfileTimer, CuptiTimer, CuptiProfiler, Timer, demangle_kernel_name
import nvfuser_direct.schedule, nvfuser_direct.ops
assert version() == "0.2.36" and Version(version()) >= Version("0.2.34") and importlib.util.find_spec("nvfuser_direct")
assert "nvfuser" not in sys.modules
with FusionDefinition() as fd:
    x = fd.define_tensor([-1], contiguity=True)
    fd.add_output(ops.relu(x))
assert "import torch\\nfrom nvfuser_direct import FusionDefinition, DataType\\n" in fd.repro_script_for()
assert fd.sched is schedule and "tv1 = fd.ops.relu(tv0)" in repr(fd) and FusionDefinition.__module__.startswith("weft")
"""


def test_a_folder_on_the_path_serves_import_nvfuser_direct():
    subprocess.run([sys.executable, "-c", COMPAT.format(before="")], check=True, env={"PYTHONPATH": str(ROOT / "compat"), "PATH": ""}, cwd="/")


def test_it_warns_when_nvfuser_is_loaded():
    code = "import sys, types, warnings; sys.modules['nvfuser'] = types.ModuleType('nvfuser'); warnings.simplefilter('error'); import nvfuser_direct"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "compat"), "PATH": ""}, cwd="/")
    assert "UserWarning: nvfuser_direct is imported although the module nvfuser is already loaded" in done.stderr


def test_ops_as_a_module_use_the_fusion_being_defined():
    from weft.api.ops import ops

    with pytest.raises(RuntimeError, match="relu needs a fusion that is being defined"):
        ops.relu(1.0)


# ---------------------------------------------------------------- versions and types
def test_the_version_compares_as_a_version():
    version = weft.version()
    assert version == "0.2.36" and isinstance(version, str)
    assert version > "0.2.9" and version >= "0.2.34" and version < "0.10" and version > (0, 2, 8) and version != "0.2.35" and hash(version) == hash("0.2.36")


TORCH = {
    torch.cdouble: "ComplexDouble", torch.cfloat: "ComplexFloat", torch.double: "Double", torch.float: "Float", torch.half: "Half",
    torch.bfloat16: "BFloat16", torch.float8_e4m3fn: "Float8_e4m3fn", torch.float8_e5m2: "Float8_e5m2", torch.float8_e8m0fnu: "Float8_e8m0fnu",
    torch.long: "Int", torch.int: "Int32", torch.bool: "Bool", torch.float4_e2m1fn_x2: "Float4_e2m1fn_x2", complex: "ComplexDouble",
    float: "Double", int: "Int", bool: "Bool",
}  # fmt: skip


@pytest.mark.parametrize("dtype", TORCH, ids=str)
def test_torch_types(dtype):
    from weft.api.pytorch_utils import torch_dtype_to_nvfuser_dtype

    assert torch_dtype_to_nvfuser_dtype(dtype) is DataType[TORCH[dtype]]


def test_python_numbers():
    from weft.api.pytorch_utils import python_scalar_to_nvfuser_dtype

    assert [python_scalar_to_nvfuser_dtype(v).name for v in (1j, 1.0, 1, True)] == ["ComplexDouble", "Double", "Int", "Bool"]
    with pytest.raises(RuntimeError):
        python_scalar_to_nvfuser_dtype("a")


def test_out_of_memory_is_tried_again_and_then_skipped(monkeypatch):
    from weft.api.pytorch_utils import retry_on_oom_or_skip_test

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    calls = []

    @retry_on_oom_or_skip_test
    def test(failures):
        calls.append(1)
        if len(calls) <= failures:
            raise torch.OutOfMemoryError("full")
        return len(calls)

    assert test(1) == 2
    calls.clear()
    with pytest.raises(pytest.skip.Exception, match="out of GPU memory"):
        test(2)


# ---------------------------------------------------------------- params
def test_launch_params():
    params = weft.LaunchParams(1, 2, 3, 4, 5, 6)
    assert (params.gdimx, params.gdimy, params.gdimz, params.bdimx, params.bdimy, params.bdimz) == (1, 2, 3, 4, 5, 6)
    params.bdimz = 7
    assert params != weft.LaunchParams(1, 2, 3, 4, 5, 6) and weft.LaunchParams().gdimx == -1 and "bdimz=7" in repr(params)


def test_a_launch_size_is_a_number_of_blocks_or_threads():
    with pytest.raises(weft.WeftError, match="W195: LaunchParams: gdimx is 'a', which is no number(.|\n)*omit gdimx"):
        weft.LaunchParams("a")
    params = weft.LaunchParams(bdimx=64)
    for value in (2.5, 0, -2, None, True, torch.ones(2)):
        with pytest.raises(TypeError, match="bdimx"):
            params.bdimx = value
    assert params == weft.LaunchParams(bdimx=64)
    params.bdimx = -1
    assert params == weft.LaunchParams()


def test_compile_params_are_keywords_only():
    params = weft.CompileParams(maxrregcount=64, index_type=DataType.Int32)
    params.include_paths.append("x")
    assert weft.CompileParams().include_paths == [] and weft.CompileParams().maxrregcount == 255 and params.index_type is DataType.Int32
    with pytest.raises(TypeError):
        weft.CompileParams(DataType.Int)


@pytest.mark.parametrize(("name", "kind", "count"), [("PointwiseParams", "pointwise", 7), ("ReductionParams", "reduction", 38), ("MatmulParams", "matmul", 15)])
def test_heuristic_params_are_records(name, kind, count):
    import dataclasses

    make = getattr(weft, name)
    a, b = make(), make()
    own = [f.name for f in dataclasses.fields(a) if f.name not in ("lparams", "cparams")]
    assert a == b and a.hash() == b.hash() and a.scheduler_type is SchedulerType[kind] and isinstance(a, weft.HeuristicParams) and len(own) == count
    for field in own:
        setattr(a, field, "other")
        assert a != b and a.hash() != b.hash() and f"{field}='other'" in repr(a)
        setattr(a, field, getattr(b, field))
    a.lparams.bdimz = 2
    assert a != b and a.hash() != b.hash()
    with pytest.raises(AttributeError):
        a.scheduler_type = SchedulerType.none


def test_reduction_params_name_parallel_types():
    assert weft.ReductionParams().block_dim_inner_reduction is ParallelType.serial


def test_matmul_records():
    macro = weft.MmaMacroEncode(weft.MmaMacroArch.hopper, 64, 128, 16).mma_macro()
    assert (macro.arch, macro.m, macro.n, macro.k) == (weft.MmaMacroArch.hopper, 64, 128, 16)
    assert weft.MatMulTileOptions(weft.GemmTile(1, 2, 3), weft.GemmTile(4, 5, 6)).warp_tile == weft.GemmTile(4, 5, 6)
    assert weft.ClusterDims(2, 1).m == 2 and weft.SupportedVectorization(8, 8, 4).epilogue == 4 and weft.CircularBufferOptions(True, False, 3, 1)


# ---------------------------------------------------------------- named, not supported
@pytest.mark.parametrize("name", ["mxfp8_scaled_mm", "nvfp4_scaled_mm", "nvfp4_scaled_mm_blockscale", "grouped_mm", "nvfp4_scaled_grouped_mm"])
def test_cutlass_names_raise_unsupported(name):
    from weft.api import nvf_cutlass

    with pytest.raises(Unsupported, match=f"nvf_cutlass.{name} is not supported"):
        getattr(nvf_cutlass, name)(1, 2, alpha=3)


def test_ops_of_later_versions_raise_unsupported_by_name():
    with weft.FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True)
        with pytest.raises(Unsupported, match="cutlass_nvfp4_grouped_mm is not supported yet"):
            fd.ops.cutlass_nvfp4_grouped_mm(*[x] * 8)
        fd.add_output(fd.ops.set(x))
