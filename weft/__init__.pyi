"""Made by docs/make_stubs.py from the registry of ops."""

from .api.enums import CacheOp as CacheOp, CommunicatorBackend as CommunicatorBackend, DataType as DataType, IdMappingMode as IdMappingMode, LoadStoreOpType as LoadStoreOpType, MatmulBufferingLoopLevel as MatmulBufferingLoopLevel, MatmulCircularBufferingStrategy as MatmulCircularBufferingStrategy, MatmulTileRasterizationOrder as MatmulTileRasterizationOrder, MatmulTilingStrategy as MatmulTilingStrategy, MemoryType as MemoryType, MmaMacroArch as MmaMacroArch, ParallelType as ParallelType, SchedulerType as SchedulerType
from .api.definition import FusionDefinition as FusionDefinition
from .api.inputs import compute_tensor_descriptor as compute_tensor_descriptor, define_scalar as define_scalar, define_tensor as define_tensor
from .api.fusion_cache import LRUCache as LRUCache, LruFusionCache as LruFusionCache
from .api.translate import translate_fusion as translate_fusion
from .api.validation import get_val_tolerances as get_val_tolerances, validate_with_auto_inferred_outputs as validate_with_auto_inferred_outputs
from .api.profile import FusionProfile as FusionProfile, KernelProfile as KernelProfile, PythonProfiler as PythonProfiler, get_fusion_profile as get_fusion_profile, reset_profiler as reset_profiler
from .api.params import CompileParams as CompileParams, HeuristicParams as HeuristicParams, LaunchParams as LaunchParams, PointwiseParams as PointwiseParams, ReductionParams as ReductionParams
from .api.matmul_params import CircularBufferOptions as CircularBufferOptions, ClusterDims as ClusterDims, GemmTile as GemmTile, MatMulTileOptions as MatMulTileOptions, MatmulParams as MatmulParams, MmaMacro as MmaMacro, MmaMacroEncode as MmaMacroEncode, SupportedVectorization as SupportedVectorization
from .api.multidevice import execute_with_dtensors as execute_with_dtensors
from .api.version import version as version
from .errors import InternalError as InternalError, Unsupported as Unsupported, UserError as UserError, WeftError as WeftError
from .frontend.explain import explain as explain
from .frontend.precompile import load_precompiled as load_precompiled, precompile as precompile
from .ir.fusion import Fusion as Fusion, FusionGuard as FusionGuard
from .ir.graph_ops import ReshapeOp as ReshapeOp
from .ir.values import BroadcastOp as BroadcastOp, Expr as Expr, IterDomain as IterDomain, Merge as Merge, Scalar as Scalar, Split as Split, SqueezeOp as SqueezeOp, Statement as Statement, TensorDomain as TensorDomain, TensorView as TensorView, Val as Val
from .runtime.bounds import PositionOutOfRange as PositionOutOfRange, synchronize as synchronize
from .runtime.fec import FusionExecutorCache as FusionExecutorCache
from .runtime.kernel_executor import KernelExecutor as KernelExecutor
from .nn.library import op as op
from .nn.patching import patch as patch
from . import nn as nn, options as options, quantize as quantize

__version__: str
