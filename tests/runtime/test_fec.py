"""FusionExecutorCache: one definition for all shapes, kernels shared, errors before anything runs, nothing lost when interrupted."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from calls_on_cpu import add, assert_same, counted_builds, define, relu, tensor

from weft import DataType, FusionDefinition, FusionExecutorCache, ParallelType
from weft.options import current, options
from weft.runtime import engines, philox_state, profile, runtimes
from weft.runtime.runtimes import LARGEST_INT32_INDEX, OnceTable


@pytest.fixture(autouse=True)
def no_kernels_from_other_tests() -> None:
    runtimes.forget_kernels()


X, Y = torch.randn(4, 8), torch.randn(4, 8)


# ---------------------------------------------------------------- kernels
def test_one_kernel_serves_many_shapes() -> None:
    fd = relu()
    for rows in range(3, 40, 7):
        x = torch.randn(rows, 36)
        assert_same(fd.execute([x]), [x.relu()])
    assert len(fd.fec.kernel_runtimes) == 1


def test_definitions_of_equal_structure_share_kernels() -> None:
    with counted_builds() as builds:
        first, second = add(), add()
        first.execute([X, Y])
        second.execute([X, Y])
    assert len(builds) == 1
    assert first.fec.kernel_runtimes == second.fec.kernel_runtimes


def test_equal_structures_with_other_names_share_kernels() -> None:
    """The kernel's expressions name the values of the first definition."""

    def build(fd: FusionDefinition) -> None:
        x = tensor(fd, 2)
        fd.ops.exp(x)  # nobody needs it; the next input gets another number
        fd.add_output(fd.ops.add(x, tensor(fd, 2)))

    first, second = add(), define(build)
    assert_same(first.execute([X, Y]), [X + Y])
    x, y = torch.randn(7, 8), torch.randn(7, 8)
    assert_same(second.execute([x, y]), [x + y])
    assert first.fec.kernel_runtimes == second.fec.kernel_runtimes
    with pytest.raises(RuntimeError, match=r"Expected input 1, T2_g"):
        second.execute([x, y.half()])


def test_the_name_of_a_kernel_comes_from_its_text() -> None:
    fd = relu()
    fd.execute([X])
    (kernel,) = fd.fec.kernel_runtimes
    assert kernel.program.name.startswith("weft_pointwise_")
    runtimes.forget_kernels()
    again = relu()
    again.execute([X])
    assert again.fec.kernel_runtimes[0] is not kernel
    assert again.fec.kernel_runtimes[0].program.name == kernel.program.name


def test_outputs_that_have_nothing_in_common_get_a_kernel_each() -> None:
    def build(fd: FusionDefinition) -> None:
        x, y = tensor(fd, 2), tensor(fd, 1)
        fd.add_output(fd.ops.relu(x))
        fd.add_output(fd.ops.exp(y))
        fd.add_output(fd.ops.sum(x, [1]))

    fd, y = define(build), torch.randn(300)
    for _ in range(2):
        assert_same(fd.execute([X, y]), [X.relu(), y.exp(), X.sum(1)])
    assert len(fd.fec.kernel_runtimes) == 2
    assert fd.fec.get_cuda_kernel([X, y]).count("__global__") == 2


def test_int64_indices_are_used_where_int32_could_overflow() -> None:
    fd = relu(contiguity=False)
    fd.execute([X])
    assert [r.program.index_type for r in fd.fec.kernel_runtimes] == [DataType.Int32]
    caller = fd.fec._caller
    sizes, _ = caller.sizes([X], None, current())
    far = replace(sizes, bound=replace(sizes.bound, tensors={0: replace(sizes.bound.tensors[0], span_elems=LARGEST_INT32_INDEX + 1)}))
    assert runtimes.index_type_for(sizes.kernels[0], far) is DataType.Int
    wide = caller.sizes([torch.empty(1, 1).expand(2**16, 2**15)], None, current())[0]
    assert runtimes.index_type_for(wide.kernels[0], wide) is DataType.Int


def test_questions_about_kernels() -> None:
    fd = relu()
    fec = fd._executor_cache()
    assert not fec.is_compiled([X])
    with pytest.raises(RuntimeError, match="there is no kernel for these inputs yet"):
        fec.get_cuda_kernel([X])
    with pytest.raises(RuntimeError, match="there is no kernel for these inputs yet"):
        fec.get_most_recent_scheduled_ir()
    fd.execute([X])
    assert fec.is_compiled([X])
    assert 'extern "C" __global__ void weft_pointwise_' in fec.get_cuda_kernel([X])
    assert "namespace weft" not in fec.get_cuda_kernel([X])
    assert "namespace weft" in fec.get_cuda_kernel([X], intrinsic_code=True)
    assert "blockIdx.x" in fec.get_scheduled_ir([X], tensor_transforms=True)
    assert fec.get_most_recent_scheduled_ir() == fec.get_scheduled_ir([X])


def test_a_kernel_of_another_definition_is_found_but_not_counted() -> None:
    add().execute([X, Y])
    fec = add()._executor_cache()
    assert fec.kernel_runtimes == ()
    with counted_builds() as builds:
        fec.execute([X, Y])
    assert builds == [] and len(fec.kernel_runtimes) == 1


def test_timings_tell_the_stages() -> None:
    fd = add()
    fd.execute([X, Y])
    cold = fd.fec.timings
    assert cold.schedule_s > 0 and cold.lowering_s > 0 and cold.nvrtc_s > 0
    assert cold.total_s >= cold.binding_s + cold.schedule_s + cold.lowering_s + cold.nvrtc_s + cold.load_s
    fd.execute([torch.randn(5, 8), torch.randn(5, 8)])
    known = fd.fec.timings
    assert known is not cold and known.lowering_s == known.nvrtc_s == 0
    assert "nvrtc 0.00 ms" in str(known)


# ---------------------------------------------------------------- outputs
def test_an_expanded_output_is_a_view_of_what_was_computed() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.ops.broadcast(fd.ops.relu(tensor(fd, 1)), [True, False])
        fd.add_output(fd.ops.expand(x, [6, fd.ops.size(x, 1)]))

    x = torch.randn(8)
    (out,) = define(build).execute([x])
    assert out.stride() == (0, 1) and out.untyped_storage().nbytes() == 8 * 4
    assert_same([out], [x.relu().expand(6, 8)])


@pytest.mark.parametrize(("order", "strides"), [([1, 0], (3, 1)), ([0, 1], (1, 2))])
def test_strides_follow_the_stride_order(order: list[int], strides: tuple[int, int]) -> None:
    fd = define(lambda fd: fd.add_output(fd.ops.stride_order(fd.ops.relu(tensor(fd, 2)), order)))
    x = torch.randn(2, 3)
    (out,) = fd.execute([x])
    assert out.stride() == strides
    assert_same([out], [x.relu()])


def test_axes_of_size_1_have_the_strides_that_torch_gives_them() -> None:
    fd = define(lambda fd: fd.add_output(fd.ops.sum(tensor(fd, 3), [1], True)))
    x = torch.randn(2, 3, 4)
    (out,) = fd.execute([x])
    assert out.stride() == torch.empty(2, 1, 4).stride()
    assert_same([out], [x.sum(1, keepdim=True)])


def test_a_scalar_output_is_refused() -> None:
    with pytest.raises(RuntimeError, match="Non-TensorView outputs are not supported at this point: .* is a scalar"):
        define(lambda fd: fd.add_output(fd.ops.size(tensor(fd, 1), 0)))


# ---------------------------------------------------------------- random numbers
def uniform(count: int = 1) -> FusionDefinition:
    def build(fd: FusionDefinition) -> None:
        for _ in range(count):
            fd.add_output(fd.ops.uniform(0.0, 1.0, [8], dtype=DataType.Float))

    return define(build)


def test_each_execution_moves_the_generator_on() -> None:
    fd, generator = uniform(), philox_state.generator_of(None)
    torch.manual_seed(3)
    assert generator.get_offset() == 0
    first, second = fd.execute([])[0], fd.execute([])[0]
    assert generator.get_offset() == 8 and not torch.equal(first, second)
    torch.manual_seed(3)
    assert generator.get_offset() == 0
    assert torch.equal(fd.execute([])[0], first) and torch.equal(fd.execute([])[0], second)
    torch.manual_seed(4)
    assert not torch.equal(fd.execute([])[0], first)


def test_a_seed_given_to_the_op_leaves_the_generator_alone() -> None:
    def build(fd: FusionDefinition) -> None:
        seed, offset = fd.define_scalar(DataType.Int), fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.uniform(0.0, 1.0, [8], rng_seed=seed, rng_offset=offset, dtype=DataType.Float))

    stateless, stateful = define(build), uniform()
    torch.manual_seed(7)
    before = philox_state.generator_of(None).get_offset()
    for offset in range(3):  # a given offset counts Philox calls, as nvFuser's does
        assert torch.equal(stateless.execute([7, offset])[0], stateful.execute([])[0])
    assert philox_state.generator_of(None).get_offset() == before + 12


def test_random_ops_of_several_kernels_take_one_state() -> None:
    fd = uniform(2)
    torch.manual_seed(5)
    a, b = fd.execute([])
    assert philox_state.generator_of(None).get_offset() == 8
    torch.manual_seed(5)
    single = uniform()
    assert torch.equal(a, single.execute([])[0]) and torch.equal(b, single.execute([])[0])


# ---------------------------------------------------------------- engines
def test_without_a_gpu_and_without_the_emulator_there_is_nothing_to_run_on() -> None:
    fd = relu()
    with options(emulate="off"), pytest.raises(RuntimeError, match="the inputs are on the CPU, and option emulate is off"):
        fd.execute([X])
    assert_same(fd.execute([X]), [X.relu()])


def test_the_emulator_imitates_the_chip_of_the_settings() -> None:
    fd = relu()
    with options(chip="A100"):
        fd.execute([X])
    assert fd.fec.kernel_runtimes[0].engine.arch.name == "A100"


def test_settings_that_change_code_are_part_of_the_kernel_key() -> None:
    fd = relu()
    fd.execute([X])
    with options(fast_math=True):
        fd.execute([X])
    assert len(fd.fec.kernel_runtimes) == 2


def test_auto_schedule_off_runs_the_fusion_as_it_was_scheduled() -> None:
    fd = relu()
    (out,) = fd.fusion.outputs()  # type: ignore[union-attr]
    while len(out.get_loop_domain()) > 1:  # type: ignore[attr-defined]
        out.merge(0, 1)  # type: ignore[attr-defined]
    out.split(0, 32)  # type: ignore[attr-defined]
    out.axis(1).parallelize(ParallelType.block_x)  # type: ignore[attr-defined]
    fec = FusionExecutorCache(fd.fusion, auto_schedule=False)  # type: ignore[arg-type]
    x = torch.randn(*[5] * len(fd.fusion.inputs()[0].get_logical_domain()))  # type: ignore[union-attr, attr-defined]
    assert torch.equal(fec.execute([x])[0], x.relu())
    assert [r.scheduler for r in fec.kernel_runtimes] == ["user"] and "{32}" in fec.get_scheduled_ir([x])


# ---------------------------------------------------------------- threads and interruptions
def test_threads_that_want_one_kernel_build_it_once() -> None:
    fds, results, start = [relu() for _ in range(6)], [], threading.Barrier(6)

    def run(fd: FusionDefinition) -> None:
        start.wait()
        results.append(fd.execute([X])[0])

    with counted_builds() as builds:
        threads = [threading.Thread(target=run, args=(fd,)) for fd in fds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(builds) == 1
    assert_same(results, [X.relu()] * 6)


def test_an_interrupted_compilation_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    fd, plain = relu(), engines.EmulatorEngine.build

    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(engines.EmulatorEngine, "build", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fd.execute([X])
    assert fd.fec.kernel_runtimes == ()
    monkeypatch.setattr(engines.EmulatorEngine, "build", plain)
    assert_same(fd.execute([X]), [X.relu()])


def test_a_maker_that_fails_leaves_its_key_free() -> None:
    table: OnceTable[int] = OnceTable()
    with pytest.raises(ZeroDivisionError):
        table.get_or_make("key", lambda: 1 // 0)
    assert table.get_or_make("key", lambda: 5) == 5 and len(table) == 1


# ---------------------------------------------------------------- profiles
def test_a_recorded_call_leaves_a_profile_of_its_kernel() -> None:
    fd = relu()
    with profile.recording():
        assert_same(fd.execute([X]), [X.relu()])
    report = fd.fec.launch_report()
    (kernel,) = report["kernel_profiles"]
    assert report["segments"] == 1 and report["fusion_id"] == 0
    assert kernel.name == fd.fec.kernel_runtimes[0].program.name and kernel.scheduler == "pointwise"
    assert kernel.input_bytes == kernel.output_bytes == X.numel() * 4
    assert kernel.time_ms > 0 and kernel.block_str.startswith("[")
    before = list(fd.fec._caller.launches)
    fd.execute([X])
    assert fd.fec._caller.launches == before
