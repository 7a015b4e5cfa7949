"""execute, manual_execute, validate, repro scripts: what they pass on, what they refuse; executors are replaced by recording ones."""

import pytest
import torch
from bytecode import instructions_of
from example_definitions import aliases, unary

from weft import DataType, FusionDefinition
from weft.api import executors
from weft.runtime.arguments import flattened


class RecordingExecutor:
    """Stands for FusionExecutorCache and KernelExecutor: records calls and returns torch's relu."""

    def __init__(self, fusion=None, fusion_id=0):
        self._fusion, self.calls, self.compiled = fusion, [], False

    def fusion(self):
        return self._fusion

    def execute(self, inputs, **kwargs):
        self.calls.append((list(inputs), kwargs))
        return [torch.relu(inputs[0])]

    def is_compiled(self):
        return self.compiled

    def compile(self, fusion, args, launch_constraints=None, **kwargs):
        self.calls.append(("compile", list(args), launch_constraints, kwargs))
        self.compiled = True

    def run(self, args, launch_constraints=None, **kwargs):
        self.calls.append(("run", list(args), launch_constraints, kwargs))
        return [torch.relu(args[0])]


@pytest.fixture(autouse=True)
def recording_executors(monkeypatch):
    monkeypatch.setattr(executors, "executor_cache", RecordingExecutor)
    monkeypatch.setattr(executors, "kernel_executor", RecordingExecutor)


@pytest.fixture
def fd():
    with FusionDefinition() as definition:
        unary(definition)
    return definition


X = torch.tensor([[-1.0, 2.0]])


def test_execute_makes_the_executor_once_and_hands_over_the_fusion(fd):
    fusion = fd.fusion
    assert not hasattr(fd, "fec")
    (out,) = fd.execute([X])
    fec = fd.fec
    fd.execute((X,))
    assert fd.fec is fec and fd.fusion is fusion is fec.fusion() and not hasattr(fd, "_fusion")
    assert torch.equal(out, torch.relu(X)) and [kwargs for _, kwargs in fec.calls] == [{}, {}]


def test_options_go_to_this_call_only(fd):
    enable, disable = ["fuse_matmul"], ["kernel_reuse"]
    fd.execute([X], device=0, _enable_options=enable, _disable_options=disable)
    fd.execute([X])
    assert fd.fec.calls[0][1] == {"device": 0, "_enable_options": enable, "_disable_options": disable} and fd.fec.calls[1][1] == {}


def test_options_are_checked_by_name(fd):
    with pytest.raises(RuntimeError, match="Unrecognized enable_option: nothing"):
        fd.execute([X], _enable_options=["nothing"])
    with pytest.raises(RuntimeError, match="Unrecognized disable_option: nothing"):
        fd.execute([X], _disable_options=["nothing"])


def test_tensors_stay_usable_and_the_definition_is_closed(fd):
    x = fd.fusion.inputs()[0]
    fd.execute([X])
    assert x.ndim == 2 and x.dtype() is DataType.Float and "T0" in str(x)
    for change in (lambda: fd.define_tensor([2]), lambda: fd.define_scalar(), lambda: fd.add_output(x), lambda: fd.ops.relu(x)):
        with pytest.raises(RuntimeError, match="already has an executor and cannot change"):
            change()


def test_execute_and_manual_execute_exclude_each_other(fd):
    fd.manual_execute([X])
    with pytest.raises(AssertionError, match=r"KernelExecutor already exists! Use manual_execute\(\) to execute the fusion\."):
        fd.execute([X])
    with FusionDefinition() as other:
        unary(other)
    other.execute([X])
    with pytest.raises(AssertionError, match=r"FusionExecutorCache already exists! Use execute\(\) to execute the fusion\."):
        other.manual_execute([X])


def test_manual_execute_compiles_once_and_flattens(fd):
    fd.manual_execute([[X]])
    fd.manual_execute([X])
    assert [call[0] for call in fd.ke.calls] == ["compile", "run", "run"] and fd.ke.calls[0][1] == [X]


def test_manual_execute_passes_heuristic_params(fd):
    from weft import PointwiseParams, SchedulerType

    params = PointwiseParams()
    fd.manual_execute([X], params)
    assert fd.ke.calls[0][2:] == (params.lparams, {"compile_params": params.cparams, "scheduler_type": SchedulerType.pointwise})


def test_flattening_is_one_level_deep():
    assert flattened([1, [2, 3], (4, [5])]) == [1, 2, 3, 4, [5]]


def test_a_warm_call_adds_few_instructions_to_the_executor(fd):
    """A quarter of a microsecond on a quiet machine."""

    class Idle:
        def execute(self, inputs):
            return inputs

    fd.fec, idle, inputs = Idle(), Idle(), [X]
    assert instructions_of(lambda: fd.execute(inputs)) - instructions_of(lambda: idle.execute(inputs)) < 30


# ---------------------------------------------------------------- repro scripts
def test_repro_script_has_environment_definition_inputs_and_call(fd):
    strided = torch.ones(4, 6)[:, ::2]
    script = fd.repro_script_for([X, strided, 2, 0.5, torch.ones(3, dtype=torch.int32).expand(2, 3), torch.ones(2, dtype=torch.bool)[::2]])
    assert script.startswith("# CUDA devices:\n") and f"# torch version: {torch.__version__}\n" in script and "# nvfuser version: 0.2.36" in script
    assert repr(fd) in script and "with FusionDefinition() as fd:\n    nvfuser_fusion(fd)\n" in script
    assert script.endswith(
        "inputs = [\n"
        "    torch.testing.make_tensor((1, 2), dtype=torch.float32, device='cpu'),\n"
        "    torch.randn(23, dtype=torch.float32, device='cpu').as_strided((4, 3), (6, 2)),\n"
        "    2,\n"
        "    0.500000,\n"
        "    torch.randint(1, 2, (3,), dtype=torch.int32, device='cpu').as_strided((2, 3), (0, 1)),\n"
        "    torch.testing.make_tensor((1,), dtype=torch.bool, device='cpu'),\n"
        "]\n"
        "fd.execute(inputs)\n"
    )


def test_repro_script_without_inputs_ends_with_the_definition(fd):
    assert "inputs" not in fd.repro_script_for() and fd.repro_script_for().endswith("    nvfuser_fusion(fd)\n")


def test_the_inputs_of_a_repro_script_have_the_sizes_and_strides_of_the_given_ones():
    from weft.api.repro import input_text

    base = torch.zeros(64)
    tensors = [
        base.as_strided((3, 2), (1, 5)), base.to(torch.float8_e4m3fn).as_strided((2, 2), (4, 1)),
        base.to(torch.cfloat).as_strided((2,), (3,)), base.bool().as_strided((2,), (3,)), base.bfloat16(), torch.tensor(1.0),
    ]  # fmt: skip
    for tensor in tensors:
        again = eval(input_text(tensor))
        assert (again.dtype, again.shape, again.stride()) == (tensor.dtype, tensor.shape, tensor.stride())


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers_of_a_repro_script_lie_between_those_of_the_given_ones(dtype):
    """They may be indices, which must stay within the tensor that they look into."""
    from weft.api.repro import input_text

    index = torch.tensor([[3, 5, 4], [5, 3, 4]], dtype=dtype)
    for tensor in (index, index.T, index[:, ::2], index[0, 0], torch.full((4,), torch.iinfo(dtype).max - 1, dtype=dtype)):
        again = eval(input_text(tensor))
        assert (again.dtype, again.shape, again.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
        assert again.min() >= tensor.min() and again.max() <= tensor.max()
    assert eval(input_text(index[:0])).shape == (0, 3)


def test_last_repro_script_is_for_the_inputs_that_were_saved(fd):
    with pytest.raises(RuntimeError, match="no execution of this definition has saved its inputs"):
        fd.last_repro_script()
    fd.execute([X, [3]], save_repro_inputs=True)
    assert not hasattr(fd.fake_inputs[0], "untyped_storage") or fd.fake_inputs[0].shape == X.shape
    assert fd.last_repro_script() == fd.repro_script_for([X, 3])


# ---------------------------------------------------------------- validation
@pytest.fixture
def tolerances(monkeypatch):
    from weft.api import validation

    monkeypatch.setattr(validation, "get_val_tolerances", lambda fusion, args: [(1e-6, 1e-6)] * len(fusion.outputs()))


def test_validate_compares_with_references_and_returns_outputs(fd, tolerances):
    (out,) = fd.validate([X], [torch.relu(X)])
    assert torch.equal(out, torch.relu(X))


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (torch.tensor([[0.0, 2.5]]), r"1 of 2 elements differ; the worst, at \(0, 1\), is 2.0 instead of 2.5"),
        (torch.tensor([[0.0, float("nan")]]), "is 2.0 instead of nan"),
        (torch.relu(X).double(), "its dtype is torch.float32, the reference's torch.float64"),
        (torch.relu(X)[0], r"its shape is \(1, 2\), the reference's \(2,\)"),
    ],
)
def test_validate_says_how_results_differ(fd, tolerances, reference, message):
    with pytest.raises(AssertionError, match=message):
        fd.validate([X], [reference])


def test_validate_knows_the_largest_number_of_a_type() -> None:
    from weft.api.validation import check_outputs, kept_inputs

    with FusionDefinition() as fd:
        fd.add_output(fd.ops.cast(fd.define_tensor(shape=[-1], contiguity=True), DataType.Half))
    x = torch.tensor([1.0, 1e6, -1e6])
    check_outputs(fd.fusion, [x.half()], kept_inputs(fd.fusion, [x]), None)
    with pytest.raises(AssertionError, match="2 of 3 elements differ"):
        check_outputs(fd.fusion, [x.clamp(-60000, 60000).half()], kept_inputs(fd.fusion, [x]), None)


def test_validate_counts_references(fd, tolerances):
    with pytest.raises(AssertionError, match="returned 1 outputs, and 2 reference outputs were given"):
        fd.validate([X], [X, X])


def test_manual_validate(fd, tolerances):
    assert torch.equal(fd.manual_validate([X], [torch.relu(X)])[0], torch.relu(X))


def test_inputs_that_are_overwritten_are_kept_as_copies():
    from weft.api.validation import kept_inputs

    with FusionDefinition() as definition:
        aliases(definition)
    inputs = [torch.ones(2), torch.ones(2), torch.ones(2)]
    kept = kept_inputs(definition.fusion, inputs)
    assert [a is b for a, b in zip(kept.values, inputs)] == [False, False, True]


def test_validate_without_references_evaluates_the_fusion(fd):
    pytest.importorskip("weft.reference.interpreter")
    pytest.importorskip("weft.reference.tolerance")
    assert torch.equal(fd.validate([X])[0], torch.relu(X))
    fd.fec.execute = lambda inputs: [torch.relu(inputs[0]) + 1]
    with pytest.raises(AssertionError, match="2 of 2 elements differ"):
        fd.validate([X])


# ---------------------------------------------------------------- profiler
def test_the_profiler_reads_the_executors_records_and_leaves_execute_alone(fd):
    from weft import KernelProfile, PythonProfiler, get_fusion_profile, reset_profiler

    plain = FusionDefinition.execute
    kernels = [KernelProfile(name="k", time_ms=0.5), KernelProfile(name="l", time_ms=1.5)]
    fd.fec = RecordingExecutor(fd.fusion)
    fd.fec.launch_report = lambda: {"fusion_id": 0, "segments": 2, "kernel_profiles": kernels}
    with PythonProfiler() as prof:
        fd.execute([X])
    assert FusionDefinition.execute is plain
    profile = prof.profile
    assert (profile.segments, profile.kernel_profiles, profile.kernel_time_ms) == (2, kernels, 2.0)
    assert profile.host_time_ms > 0 and profile.input_bytes == profile.output_bytes == 8
    assert profile.percentage_peak_bandwith == profile.percentage_peak_bandwidth == 0.0
    reset_profiler()
    with pytest.raises(RuntimeError, match="no profile"):
        get_fusion_profile()


def test_the_profiler_refuses_an_executor_without_records(fd):
    from weft import PythonProfiler, Unsupported

    with PythonProfiler(), pytest.raises(Unsupported, match="PythonProfiler"):
        fd.execute([X])
