"""FusionDefinition: the object with which a user defines, executes, validates and prints a fusion.

Owns the life of a definition: open in its `with` block, closed, then owned by an executor. What its methods do is in the modules
beside this one.
Read first: `FusionDefinition.execute`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..ir.block_ops import loop_sources
from ..ir.enums import ParallelType
from ..ir.fusion import Fusion, FusionGuard
from ..ir.values import Scalar, TensorView, Val
from ..options import check_option_names, is_disabled, nearest
from ..runtime.arguments import flattened
from . import executors, inputs as inputs_module, matmuls
from .misuse import NoListOfArguments, NoSuchKeyword, explained
from .multidevice import settle_on_one_device
from .ops import OpNames
from .streams import take_streams
from .subclasses import define_by_method

if TYPE_CHECKING:
    import torch

    from .autograd import Differentiable

NO_FUSION = "Fusion does not exist! Use `with FusionDefinition() as fd: ...` to define it."
EMPTY_FUSION = "Fusion is empty!"
KERNEL_EXECUTOR_EXISTS = "KernelExecutor already exists! Use manual_execute() to execute the fusion."
EXECUTOR_CACHE_EXISTS = "FusionExecutorCache already exists! Use execute() to execute the fusion."


NO_NAMES: tuple[str, ...] = ()


@explained
def _option_names(enable: Sequence[str], disable: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return nvFuser's option names of a call as lists. Errors: UnrecognizedEnableOption, UnrecognizedDisableOption, CannotTake."""
    names = list(enable), list(disable)
    check_option_names(*names)
    return names


class IncompleteDefinition(UserError, NotImplementedError):
    code = "W121"
    fix = "define at least one output with add_output inside the `with` block, then execute"


class WrongExecutor(UserError, AssertionError):
    code = "W122"


class ClosedDefinition(UserError):
    code = "W123"
    what = "{action}: this definition already has an executor and cannot change"
    fix = "define another FusionDefinition"


class UnsupportedDevice(UserError, ValueError):
    code = "W124"
    what = "Found unsupported device {device}, only scalar CPU or CUDA tensors are supported"
    fix = "move the tensor to a GPU, or use define_tensor, which takes sizes and strides"


class UnknownMember(UserError, AttributeError):
    code = "W153"
    what = "a FusionDefinition has no {name!r}"
    fix = "{remedy}"


WHEN_MADE = {
    "fec": " before its first execution: call fd.execute(inputs) first", "ke": " before its first execution by hand: call fd.manual_execute(inputs) first",
    "fake_inputs": " before its inputs are saved: call fd.execute(inputs, save_repro_inputs=True) first",
}  # fmt: skip
"""What is no attribute until an execution makes it."""


class ScheduledByHand(UserError):
    code = "W146"
    what = "execute chooses a schedule, but this definition is already scheduled by hand"
    fix = "run it with manual_execute(inputs), or remove the schedule"


def is_scheduled(fusion: Fusion) -> bool:
    """Tell whether axes of a fusion were split, merged, moved or bound, or tensors inlined."""
    for tensor in fusion.vals():
        if isinstance(tensor, TensorView):
            loop, made = tensor.get_loop_domain(), loop_sources(tensor)
            plain = len(loop) == len(made) and all(a is b and a.parallel is ParallelType.serial for a, b in zip(loop, made))
            if not plain or tensor.compute_at or tensor.circular is not None:
                return True
    return False


def _emulator_runs() -> bool:
    """Tell whether tensors on the CPU are what definitions run on here."""
    import torch

    from ..options import current

    return not torch.cuda.is_available() or current().emulate == "on"


def _defined_again(text: str | None, records_gradients: bool) -> "FusionDefinition":
    """Return a definition from its text: what copy, pickle and torch.save keep of one."""
    from ..dtypes import DataType

    fd = FusionDefinition()
    if text is not None:
        names: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
        exec(text, names)  # noqa: S102  (a definition's own text)
        with fd:
            names["nvfuser_fusion"](fd)
    if records_gradients:
        fd.autograd()
    return fd


class FusionDefinition:
    """Defines a fusion in its `with` block, and executes it afterwards.

    Example:
        with FusionDefinition() as fd:
            x = fd.define_tensor(shape=[-1, -1], contiguity=True)
            fd.add_output(fd.ops.relu(x))
        (y,) = fd.execute([torch.randn(4, 8, device="cuda")])

    fec and ke, the executors of `execute` and `manual_execute`, are attributes that appear with the first call (fec may also be set);
    fake_inputs appears when an execution saves its inputs for `last_repro_script`.
    """

    def __init__(self) -> None:
        from . import schedule

        self._fusion: Fusion | None = None
        self._fusion_guard: FusionGuard | None = None
        self.ops = OpNames(self._open_fusion)
        self.sched = schedule

    # -- life
    def __enter__(self) -> "FusionDefinition":
        self._fusion = Fusion()
        self._fusion_guard = FusionGuard(self._fusion)
        self._fusion_guard.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._fusion_guard is not None:
            self._fusion_guard.__exit__()
            self._fusion_guard = None

    @property
    def fusion(self) -> Fusion | None:
        """The fusion: the executor's once there is one, None before the `with` block."""
        fec = self.__dict__.get("fec")
        return self._fusion if fec is None else fec.fusion()

    def _open_fusion(self, action: str) -> Fusion:
        """Return the fusion if it can still change."""
        if "fec" in self.__dict__ or "ke" in self.__dict__:
            raise ClosedDefinition(action=action)
        if self._fusion is None:
            raise inputs_module.NoActiveDefinition(function=action)
        return self._fusion

    def __reduce__(self) -> Any:
        fusion = self.fusion
        return _defined_again, (None if fusion is None else repr(self), "_differentiable" in self.__dict__)

    def __deepcopy__(self, memo: dict[int, Any]) -> "FusionDefinition":
        function, arguments = self.__reduce__()
        return function(*arguments)

    def __repr__(self) -> str:
        from .translate import translate_fusion

        fusion = self.fusion
        return f"FusionDefinition(): {NO_FUSION}" if fusion is None else translate_fusion(fusion)

    # -- definition
    @explained
    def define_tensor(self, *args: Any, **kwargs: Any) -> TensorView:
        """Add a tensor input; the forms are those of `weft.api.inputs.define_tensor`."""
        fusion = self._open_fusion("define_tensor")
        tensor = inputs_module.make_tensor(fusion, *args, **kwargs)
        fusion.add_input(tensor)
        return tensor

    @explained
    def define_scalar(self, *args: Any, **kwargs: Any) -> Scalar:
        """Return a constant, or add a scalar input: define_scalar(dtype=Double), define_scalar(value, dtype=None)."""
        fusion = self._open_fusion("define_scalar")
        scalar = inputs_module.make_scalar(fusion, *args, **kwargs)
        if scalar.is_symbolic():
            fusion.add_input(scalar)
        return scalar

    @explained
    def define_vector(self, size: int) -> list[Scalar]:
        """Add `size` scalar inputs of type Int."""
        from ..dtypes import DataType

        return [self.define_scalar(DataType.Int) for _ in range(size)]

    @explained
    def from_pytorch(self, tensor: "torch.Tensor", static_sizes: bool = False) -> TensorView:
        """Add a tensor input like `tensor`; sizes other than 1 are symbolic unless `static_sizes`.

        Errors: UnsupportedDevice (a ValueError) for a CPU tensor that is no scalar, where a GPU runs definitions.
        """
        from .pytorch_utils import torch_dtype_to_nvfuser_dtype

        is_scalar = tensor.is_cpu and tensor.dim() == 0
        if not (tensor.is_cuda or is_scalar or tensor.is_cpu and _emulator_runs()):
            raise UnsupportedDevice(device=tensor.device)
        return self.define_tensor(
            sizes=tuple(tensor.size()), strides=tuple(tensor.stride()), dtype=torch_dtype_to_nvfuser_dtype(tensor.dtype),
            static_sizes=static_sizes, is_cpu=is_scalar,
        )  # fmt: skip

    @explained
    def add_output(self, output: Val, alias_input: Val | None = None) -> None:
        """Add an output. With `alias_input` it is written into that input's memory, and returned only if it is also added without alias_input."""
        from .outputs import add_output

        add_output(self._open_fusion("add_output"), output, alias_input)

    def validate_definition(self) -> tuple[bool, str | None]:
        """Return (whether the definition can be executed, the reason if not)."""
        fusion = self.fusion
        if fusion is None:
            return False, NO_FUSION
        if not fusion.outputs():
            return False, EMPTY_FUSION
        return True, None

    def _checked_fusion(self) -> Fusion:
        define_by_method(self)
        is_valid, reason = self.validate_definition()
        if not is_valid:
            raise IncompleteDefinition(reason)
        return self.fusion  # type: ignore[return-value]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What is no attribute. Errors: UnknownMember."""
            if name.startswith("_") or name in WHEN_MADE:  # copying and pickling ask for names of their own; `execute` asks for fec
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}" + WHEN_MADE.get(name, ""))
            public = [n for n in dir(type(self)) if not n.startswith("_")]
            raise UnknownMember(name=name, remedy=f"{nearest(name, public)}; ops are in fd.ops, kernels and their texts in fd.fec")

    # -- execution
    def execute(self, inputs: Sequence[Any], *more: Any, **keywords: Any) -> "list[torch.Tensor]":
        """Run the fusion on `inputs` and return its outputs; the first call with inputs of a kind compiles the kernels.

        Keywords: device=None, save_repro_inputs=False, _enable_options=(), _disable_options=(), check=None, seed=None, tune=None.
        check, seed, tune: the settings of these names, for this call: check="races" runs it in the emulator (tensors on a GPU are copied), and raises a
        KernelFault for what is wrong with the kernel; a seed permutes the order of its threads, the same way each time; tune=True times candidates of each
        kernel before this call, and later calls use the fastest, too (docs/tuning.md).
        Errors: IncompleteDefinition (NotImplementedError), WrongExecutor (AssertionError), and UserErrors for wrong inputs.
        """
        if keywords or more:
            if more:
                raise NoListOfArguments(function="execute", count=1 + len(more))
            return self._execute_with(inputs, **keywords)
        try:
            run = self.fec.execute
        except AttributeError:
            if define_by_method(self):
                return self.manual_execute(inputs)
            run = self._executor_cache().execute
        return run(inputs)

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        """Refuse: a definition is executed on a list of inputs. Errors: NoListOfArguments."""
        raise NoListOfArguments(function="the definition", count=len(inputs) + len(keywords))

    def _execute_with(
        self, inputs: Sequence[Any], *, device: Any = None, save_repro_inputs: bool = False, _enable_options: Sequence[str] = NO_NAMES,
        _disable_options: Sequence[str] = NO_NAMES, check: Any = None, seed: int | None = None, tune: bool | None = None,
        **others: Any,
    ) -> "list[torch.Tensor]":  # fmt: skip
        """`execute` with keywords: a function that names them costs each call 10 ns for each that it leaves out. Errors: NoSuchKeyword."""
        for name in others:
            raise NoSuchKeyword(name)
        if define_by_method(self):
            return self.manual_execute(inputs)
        fec = self._executor_cache()
        if device is check is seed is tune is None and not save_repro_inputs and _enable_options is _disable_options is NO_NAMES:
            return fec.execute(inputs)
        enable, disable = _option_names(_enable_options, _disable_options)
        if "matmul_expr_eval" in disable:
            matmuls.refuse_without_torch(self.fusion)  # type: ignore[arg-type]
        if save_repro_inputs:
            from .repro import fake_copies

            self.fake_inputs = fake_copies(inputs)
        checks = {} if check is seed is tune is None else {"check": check, "seed": seed, "tune": tune}
        return fec.execute(inputs, device=device, _enable_options=enable, _disable_options=disable, **checks)

    def autograd(self) -> "Differentiable":
        """Let executions record gradients: `execute` from now on, and the object that is returned, which can be called with the inputs.

        The backward is derived from the definition, op by op, and runs through the same caches. Errors (at the first call with inputs that require gradients):
        NotDifferentiable names an op without a rule.
        """
        from .autograd import Differentiable

        found = self.__dict__.get("_differentiable")
        if found is None:
            executor = self._executor_cache()
            found = self._differentiable = Differentiable(executor.fusion(), executor, _defined_again)
            found.with_keywords = self._execute_with
            self.execute = found.execute  # type: ignore[method-assign]
        return found

    def _executor_cache(self) -> Any:
        """Return `fec`, made now if there is none; the fusion then belongs to it."""
        fec = self.__dict__.get("fec")
        if fec is None:
            if "ke" in self.__dict__:
                raise WrongExecutor(KERNEL_EXECUTOR_EXISTS)
            fusion = self._checked_fusion()
            settle_on_one_device(fusion)
            take_streams(fusion)
            if is_scheduled(fusion):
                raise ScheduledByHand()
            if is_disabled("matmul_expr_eval"):
                matmuls.refuse_without_torch(fusion)
            fec = self.fec = executors.executor_cache(fusion)
            fusion.is_closed = True
            self.__dict__.pop("_fusion", None)
        return fec

    def manual_execute(self, inputs: Sequence[Any], heuristic_params: Any = None) -> "list[torch.Tensor]":
        """Run the fusion as it was scheduled by hand, or by `fd.sched.schedule` with the `heuristic_params` it returned.

        Errors: IncompleteDefinition (NotImplementedError), WrongExecutor (AssertionError).
        """
        from .manual import compile_and_run

        if "fec" in self.__dict__:
            raise WrongExecutor(EXECUTOR_CACHE_EXISTS)
        fusion = self._checked_fusion()
        if "ke" not in self.__dict__:
            self.ke = executors.kernel_executor()
        return compile_and_run(self.ke, fusion, flattened(inputs), heuristic_params)

    # -- validation
    def validate(
        self, inputs: Sequence[Any], reference_outputs: "Sequence[torch.Tensor] | None" = None, device: Any = None, **kwargs: Any
    ) -> "list[torch.Tensor]":
        """Execute, compare with `reference_outputs` (or with an evaluation of the fusion by torch in double precision), return the outputs.

        Errors: ResultMismatch (an AssertionError) that names the output, the largest difference and the tolerance.
        """
        from .validation import check_outputs, kept_inputs

        kept = kept_inputs(self._checked_fusion(), inputs)
        outputs = self.execute(inputs, device=device, **kwargs)
        check_outputs(self._checked_fusion(), outputs, kept, reference_outputs)
        return outputs

    def manual_validate(self, inputs: Sequence[Any], reference_outputs: "Sequence[torch.Tensor] | None" = None) -> "list[torch.Tensor]":
        """`validate` over `manual_execute`."""
        from .validation import check_outputs, kept_inputs

        fusion = self._checked_fusion()
        reference, kept = fusion.clone()[0], kept_inputs(fusion, inputs)
        outputs = self.manual_execute(inputs)
        check_outputs(reference, outputs, kept, reference_outputs)
        return outputs

    # -- scripts
    @explained
    def repro_script_for(self, inputs: Sequence[Any] | None = None) -> str:
        """Return a script that defines this fusion, makes inputs like `inputs` and executes it."""
        from .repro import repro_script

        return repro_script(self, inputs)

    def last_repro_script(self) -> str:
        """Return the script for the inputs of the last `execute(..., save_repro_inputs=True)`."""
        from .repro import last_repro_script

        return last_repro_script(self)


# What help() and messages about wrong keywords show.
FusionDefinition.execute.__signature__ = inspect.signature(FusionDefinition._execute_with)  # type: ignore[attr-defined]
FusionDefinition._execute_with.__qualname__ = FusionDefinition.execute.__qualname__
