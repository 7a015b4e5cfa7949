"""Definitions executed by real kernels (the emulator's without a GPU): the layouts and special cases of inputs and outputs."""

import pytest
import torch

from weft import DataType, FusionDefinition, LRUCache

pytest.importorskip("weft.runtime.fec")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def executed(define, inputs):
    """Execute a definition and what its text defines; require equal values and strides, return the outputs."""
    with FusionDefinition() as fd:
        define(fd)
    scope = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), scope)
    with FusionDefinition() as again:
        scope["nvfuser_fusion"](again)
    outputs = fd.execute(inputs)
    for a, b in zip(outputs, again.execute(inputs), strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride() and a.dtype == b.dtype
    return outputs


def twice(shape, contiguity, **kwargs):
    def define(fd):
        x = fd.define_tensor(shape=shape, contiguity=contiguity, **kwargs)
        fd.add_output(fd.ops.add(x, x))

    return define


BASE = torch.arange(48, dtype=torch.float32, device=DEVICE)
LAYOUTS = {
    "symbolic": ([-1, -1], True, BASE.view(6, 8), {}),
    "static": ([6, 8], True, BASE.view(6, 8), {}),
    "broadcast": ([-1, 1], [True, None], BASE.view(48, 1), {}),
    "expanded": ([-1, 3], [True, None], BASE.view(48, 1).expand(48, 3), {}),
    "strided": ([-1, -1], [False, False], BASE.view(6, 8)[::2, ::3], {}),
    "misaligned": ([-1], True, BASE[1:], {}),
    "stride order": ([-1, -1], True, BASE.view(6, 8).t(), {"stride_order": [0, 1]}),
    "zero size": ([-1, 8], True, BASE[:0].view(0, 8), {}),
    "zero dim": ([], [], BASE[5], {}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_inputs(name):
    shape, contiguity, x, more = LAYOUTS[name]
    (out,) = executed(twice(shape, contiguity, **more), [x])
    assert torch.equal(out, x + x)


@pytest.mark.parametrize("first", ["scalar", "tensor"])
@pytest.mark.parametrize("start", [0, 1, 2])
def test_scalars_say_nothing_of_the_alignment_of_tensors(first, start):
    """Tensors and scalars are numbered apart, both from 0."""
    x = torch.randn(48, device=DEVICE)[start : start + 40].view(5, 8)

    def define(fd):
        s = fd.define_scalar(DataType.Double) if first == "scalar" else None
        t = fd.define_tensor([-1, -1], contiguity=True)
        s = fd.define_scalar(DataType.Double) if s is None else s
        fd.add_output(fd.ops.mul(t, s))
        fd.add_output(fd.ops.sub(t, fd.ops.sum(fd.ops.mul(t, s), dims=[1], keepdim=True)))

    scaled, centred = executed(define, [0.5, x] if first == "scalar" else [x, 0.5])
    assert torch.equal(scaled, x * 0.5)
    want = x.double() - (x.double() * 0.5).sum(1, keepdim=True)
    assert (centred.double() - want).abs().max() <= 8 * 2**-24 * x.abs().sum(1).max() + 1e-7


def test_scalars_of_the_cpu_and_of_python():
    def define(fd):
        x, c, s = fd.define_tensor([-1], contiguity=True), fd.define_tensor([], [], is_cpu=True), fd.define_scalar(DataType.Double)
        fd.add_output(fd.ops.mul(fd.ops.add(x, c), s))

    (out,) = executed(define, [BASE, torch.tensor(2.0), 0.5])
    assert torch.equal(out, (BASE + 2) * 0.5)


def test_an_alias_is_written_and_returned_only_when_added_plainly():
    def define(fd, plain):
        x = fd.define_tensor([-1], contiguity=True)
        y = fd.ops.add(x, 1.0)
        fd.add_output(y, x)
        if plain:
            fd.add_output(y)

    for plain in (False, True):
        with FusionDefinition() as fd:
            define(fd, plain)
        x = BASE.clone()
        outputs = fd.execute([x])
        assert torch.equal(x, BASE + 1) and len(outputs) == plain
        assert not plain or outputs[0].data_ptr() == x.data_ptr()


def test_inputs_as_outputs_are_the_tensors_given():
    def define(fd):
        x = fd.define_tensor([-1], contiguity=True)
        fd.add_output(x)
        fd.add_output(fd.ops.relu(x))

    first, second = executed(define, [BASE])
    assert first.data_ptr() == BASE.data_ptr() and torch.equal(second, BASE)


def test_unused_inputs_do_not_matter():
    def define(fd):
        fd.define_tensor([-1], contiguity=True)
        fd.add_output(fd.ops.relu(fd.define_tensor([-1], contiguity=True)))

    assert torch.equal(executed(define, [BASE[:3], BASE])[0], BASE)


def test_the_stride_order_of_an_output():
    (out,) = executed(lambda fd: fd.add_output(fd.ops.stride_order(fd.define_tensor([-1, -1], contiguity=True), [0, 1])), [BASE.view(6, 8)])
    assert out.stride() == (1, 6) and torch.equal(out, BASE.view(6, 8))


def test_leaves_that_require_gradients_pass():
    x = torch.nn.Parameter(BASE.clone())
    with FusionDefinition() as fd:
        twice([-1], True)(fd)
    assert torch.equal(fd.execute([x])[0], BASE * 2)


def test_nested_inputs_are_flattened():
    with FusionDefinition() as fd:
        twice([-1], True)(fd)
    assert torch.equal(fd.execute([[BASE]])[0], BASE * 2) and torch.equal(fd.execute(([BASE],))[0], BASE * 2)


def test_one_symbolic_definition_serves_many_shapes():
    with FusionDefinition() as fd:
        twice([-1, -1], True)(fd)
    for shape in ((6, 8), (3, 16), (48, 1), (6, 8)):
        assert torch.equal(fd.execute([BASE.view(shape)])[0], (BASE * 2).view(shape))


def test_wrong_inputs_are_runtime_errors_with_nvfusers_words():
    with FusionDefinition() as fd:
        x, s = fd.define_tensor([-1], contiguity=True), fd.define_scalar(DataType.Double)
        fd.add_output(fd.ops.mul(x, s))
    for inputs, message in (
        ([2, 2.0], "Expected input 0, .*, to be an at::Tensor but got scalar 2"),
        ([BASE, BASE], "Expected input 1, d2, to be a scalar but got float tensor of rank 1"),
        ([BASE.half(), 2.0], "to be bound to a tensor of dtype float, but got a tensor of dtype __half"),
        ([BASE, 2 + 1j], r"Scalar value \(2,1\) is not compatible with the expected data type: double\."),
    ):
        for _ in range(2):  # a failed call leaves nothing behind
            with pytest.raises(RuntimeError, match=message):
                fd.execute(inputs)
    assert torch.equal(fd.execute([BASE, 2.0])[0], BASE * 2)


def test_validate_finds_a_softmax_right():
    def define(fd):
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Half)
        x32 = fd.ops.cast(x, DataType.Float)
        e = fd.ops.exp(fd.ops.sub(x32, fd.ops.expand(fd.ops.max(x32, [1], True), x.shape())))
        y = fd.ops.div(e, fd.ops.expand(fd.ops.sum(e, [1], True), x.shape()))
        fd.add_output(fd.ops.cast(y, DataType.Half))

    with FusionDefinition() as fd:
        define(fd)
    x = torch.randn(5, 40, device=DEVICE).half()
    (out,) = fd.validate([x])
    torch.testing.assert_close(out, torch.softmax(x.float(), 1).half(), atol=1e-3, rtol=1e-3)


def test_validate_repeats_random_numbers():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True)
        fd.add_output(fd.ops.add(x, fd.ops.uniform(0.0, 1.0, x.shape(), dtype=DataType.Float)))
    torch.manual_seed(0)
    (a,) = fd.validate([BASE])
    (b,) = fd.validate([BASE])
    assert not torch.equal(a, b)


def test_a_cache_of_fusions_shares_real_executors():
    cache, outputs = LRUCache(4), []
    for _ in range(2):
        with FusionDefinition() as fd:
            twice([-1], True)(fd)
        fd.fec = cache.cache_compile(fd.fusion)
        del fd._fusion
        outputs += fd.execute([BASE])
        assert "tv1 = fd.ops.add(tv0, tv0)" in repr(fd)
    assert cache.num_fusions() == 1 and torch.equal(outputs[0], outputs[1])


def test_the_profiler_sees_the_kernel_of_a_call():
    from weft import PythonProfiler

    with FusionDefinition() as fd:
        twice([-1], True)(fd)
    with PythonProfiler() as prof:
        fd.execute([BASE])
    profile = prof.profile
    (kernel,) = profile.kernel_profiles
    assert profile.segments == 1 and profile.host_time_ms > 0 and profile.input_bytes == profile.output_bytes == 4 * 48
    assert kernel.scheduler == "pointwise" and kernel.time_ms > 0 and kernel.grid_str and kernel.block_str and kernel.name


def test_questions_about_kernels():
    with FusionDefinition() as fd:
        twice([-1], True)(fd)
    fd.execute([BASE])
    fec = fd.fec
    assert fec.is_compiled([BASE]) and len(fec.kernel_runtimes) == 1
    assert "__global__" in fec.get_cuda_kernel([BASE]) and "T0" in fec.get_scheduled_ir([BASE]) == fec.get_most_recent_scheduled_ir()


def test_options_do_not_leak_into_other_calls():
    with FusionDefinition() as fd:
        twice([-1], True)(fd)
    enable = []
    for _ in range(2):
        assert torch.equal(fd.execute([BASE], _enable_options=enable, _disable_options=["fma"])[0], BASE * 2)
        assert torch.equal(fd.execute([BASE])[0], BASE * 2) and enable == []


def test_a_schedule_by_hand_runs():
    pytest.importorskip("weft.runtime.kernel_executor")
    from weft import ParallelType

    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 8], contiguity=True)
        y = fd.ops.relu(x)
        fd.add_output(y)
        y.axis(0).parallelize(ParallelType.grid_x)
        y.axis(1).parallelize(ParallelType.block_x)
    assert torch.equal(fd.manual_execute([BASE.view(6, 8)])[0], BASE.view(6, 8))
