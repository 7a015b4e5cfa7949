"""Loading and launching: against a driver that drives nothing, and on a GPU where there is one."""

from __future__ import annotations

import ctypes
import threading
import timeit
from collections.abc import Callable
from typing import Any

import pytest
from bytecode import instructions_of

from weft.arch import H200, DriverCallFailed, NoSuchDevice
from weft.runtime import driver
from weft.runtime.driver import CodeRejected, CooperativeGridTooLarge, LaunchBeyondLimit, LoadedKernel, TensorMapRejected, encode_tensor_map, load_kernel
from weft.runtime.launch import BadParameter, LaunchConfig, LaunchRecord, make_config
from weft.runtime.warm_path import LaunchText, RunParts, write_run
from weft.runtime.nvrtc import Compiled, compile_cubin

SCALE = """
extern "C" __global__ void scale(const float* __restrict__ a, float* b, float factor, long long n, int shift, bool flip) {
  extern __shared__ float tile[];
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  tile[threadIdx.x] = a[i] * factor + shift;
  b[i] = flip ? -tile[threadIdx.x] : tile[threadIdx.x];
}
"""


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_cubin(SCALE, "scale", "sm_90a")


@pytest.fixture
def kernel(fake_driver: Any, compiled: Compiled) -> LoadedKernel:
    return load_kernel(compiled.cubin, "scale", 1, compiled.resources)


def first_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value).splitlines()[0]


# -- structures ---------------------------------------------------------------------------------------------------------


def test_structures_are_those_of_cuda_h() -> None:
    bindings = pytest.importorskip("cuda.bindings.driver")
    ours = make_config((5, 6, 7), (8, 9, 10), 11, cluster=(5, 2, 1), cooperative=True, overlap_previous=True)
    assert ctypes.sizeof(LaunchConfig) == 56 and ctypes.sizeof(LaunchConfig().attributes._type_) == 72
    theirs = bindings.CUlaunchConfig(ctypes.addressof(ours))
    assert [theirs.gridDimX, theirs.gridDimY, theirs.gridDimZ] == [5, 6, 7]
    assert [theirs.blockDimX, theirs.blockDimY, theirs.blockDimZ, theirs.sharedMemBytes, theirs.numAttrs] == [8, 9, 10, 11, 3]
    names = bindings.CUlaunchAttributeID
    attributes = [bindings.CUlaunchAttribute(ctypes.addressof(ours.attributes[i])) for i in range(3)]
    assert [attribute.id for attribute in attributes] == [
        names.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        names.CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
        names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
    ]
    cluster = attributes[0].value.clusterDim
    assert (cluster.x, cluster.y, cluster.z) == (5, 2, 1)
    assert attributes[1].value.cooperative == 1 and attributes[2].value.programmaticStreamSerializationAllowed == 1


def test_numbers_are_those_of_cuda_h() -> None:
    bindings = pytest.importorskip("cuda.bindings.driver")
    function = bindings.CUfunction_attribute
    assert driver._MAX_DYNAMIC_SHARED_BYTES == function.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert driver._NON_PORTABLE_CLUSTER_SIZE_ALLOWED == function.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    assert driver._REGISTERS == function.CU_FUNC_ATTRIBUTE_NUM_REGS and driver._LOCAL_BYTES == function.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
    assert driver._CAPTURE_MODE_RELAXED == bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    types = bindings.CUtensorMapDataType
    assert driver._MAP_TYPES[64] == types.CU_TENSOR_MAP_DATA_TYPE_UINT64


# -- loading ------------------------------------------------------------------------------------------------------------


def test_code_is_loaded_in_the_devices_context(fake_driver: Any, kernel: LoadedKernel, compiled: Compiled) -> None:
    assert kernel.arch == H200 and kernel.resources is compiled.resources
    assert kernel.attributes.registers == 32
    assert fake_driver.get("context_depth") == 0
    assert fake_driver.get("load_capture_mode") == 2 and fake_driver.get("capture_mode") == 0  # relaxed while loading only


def test_resources_come_from_the_cubin_when_nobody_knows_them(fake_driver: Any, compiled: Compiled) -> None:
    loaded = load_kernel(compiled.cubin, "scale", 0)
    assert loaded.resources.registers == compiled.resources.registers and loaded.resources.spill_store_bytes == 0  # it has no stack


def test_code_that_the_driver_refuses(fake_driver: Any, compiled: Compiled) -> None:
    fake_driver.set(load_status=200)
    with pytest.raises(CodeRejected) as error:
        load_kernel(compiled.cubin, "scale", 0, compiled.resources)
    assert first_line(error) == (
        "W762: the driver (CUDA 13.0) does not load the machine code of kernel scale on H200 (sm_90a): CUDA_ERROR_INVALID_IMAGE (200), a fake error"
    )
    assert "clear the cache folder" in str(error.value)
    assert fake_driver.get("context_depth") == 0 and fake_driver.get("capture_mode") == 0


def test_a_device_that_does_not_exist(fake_driver: Any, compiled: Compiled) -> None:
    with pytest.raises(NoSuchDevice):
        load_kernel(compiled.cubin, "scale", 7, compiled.resources)


# -- launching ----------------------------------------------------------------------------------------------------------

PARAMS = [("pointer", 0), ("pointer", 1), ("scalar", "float", 2.0), ("scalar", "long long", 2**40), ("scalar", "int", -3), ("scalar", "bool", True)]


def test_a_launch_passes_what_was_recorded(fake_driver: Any, kernel: LoadedKernel) -> None:
    fake_driver.set(arg_count=6)
    record = kernel.record((3, 4, 5), (32, 2, 1), 1000, PARAMS)  # type: ignore[arg-type]
    assert record.pointer_count == 2
    record.launch([0x7F0000001000, 0x7F0000002000], 0x55)
    launch = fake_driver.launch()
    assert (list(launch.grid), list(launch.block), launch.shared, launch.stream, launch.count) == ([3, 4, 5], [32, 2, 1], 1000, 0x55, 0)
    assert launch.function == 0xF00000001 and launch.context == 0
    assert list(launch.args)[:2] == [0x7F0000001000, 0x7F0000002000]
    assert ctypes.c_float.from_buffer_copy(ctypes.c_uint64(launch.args[2])).value == 2.0
    assert launch.args[3] == 2**40 and ctypes.c_int32(launch.args[4] & 0xFFFFFFFF).value == -3 and launch.args[5] & 0xFF == 1


def test_only_addresses_and_stream_change_between_launches(fake_driver: Any, kernel: LoadedKernel) -> None:
    fake_driver.set(arg_count=4)
    record = kernel.record((1,), (32,), 0, [("pointer", 1), ("scalar", "int", 7), ("pointer", 0), ("pointer", 1)])
    sets = fake_driver.get("attribute_sets")
    record.launch((10, 11), 1)
    record.launch([20, 21], 2)
    for back, (args, stream) in enumerate([([21, 7, 20, 21], 2), ([11, 7, 10, 11], 1)]):
        assert list(fake_driver.launch(back).args)[:4] == args and fake_driver.launch(back).stream == stream
    assert fake_driver.get("attribute_sets") == sets


def test_scalars_change_for_good_or_for_one_launch(fake_driver: Any, kernel: LoadedKernel) -> None:
    fake_driver.set(arg_count=3)
    record = kernel.record((1,), (32,), 0, [("pointer", 0), ("scalar", "unsigned long long", 1), ("scalar", "unsigned long long", 2)])
    record.set_scalar(1, 100)
    record.launch([9], 0)
    assert list(fake_driver.launch().args)[:3] == [9, 100, 2]
    record.launch([9], 0, [(2, 2**63)])
    assert list(fake_driver.launch().args)[:3] == [9, 100, 2**63]
    with pytest.raises(BadParameter) as error:
        record.set_scalar(0, 5)
    assert first_line(error) == "W750: kernel parameter 0 is ('pointer', 0): not a scalar"


def test_wrong_parameters_are_refused(fake_driver: Any, kernel: LoadedKernel) -> None:
    with pytest.raises(BadParameter, match="no scalar type; there are bool"):
        kernel.record((1,), (32,), 0, [("scalar", "int32_t", 1)])
    with pytest.raises(BadParameter, match="first field is"):
        kernel.record((1,), (32,), 0, [("pionter", 1)])  # type: ignore[list-item]
    with pytest.raises(BadParameter, match="128 bytes"):
        kernel.record((1,), (32,), 0, [("tensor_map", 0, b"short")])
    record = kernel.record((1,), (32,), 0, [("pointer", 0)])
    for wrong in ([], [1, 2]):
        with pytest.raises(ValueError):
            record.launch(wrong, 0)
    assert fake_driver.launch_count == 0
    record.launch([1], 0)
    assert fake_driver.launch_count == 1


def test_a_kernel_without_parameters_can_be_launched(fake_driver: Any, kernel: LoadedKernel) -> None:
    kernel.record((1,), (32,), 0, []).launch([], 0)
    assert fake_driver.launch_count == 1


def test_an_empty_grid_launches_nothing(fake_driver: Any, kernel: LoadedKernel) -> None:
    kernel.record((4, 0), (32,), 0, [("pointer", 0)], cooperative=True).launch([1], 0)
    assert fake_driver.launch_count == 0


def test_a_thread_without_the_devices_context_launches_in_it(fake_driver: Any, kernel: LoadedKernel) -> None:
    record = kernel.record((1,), (32,), 0, [("pointer", 0)])
    fake_driver.set(needs_context=1)
    record.launch([1], 0)
    assert fake_driver.launch_count == 1 and fake_driver.launch().context == 0xC001
    assert fake_driver.get("context_depth") == 0


def test_a_launch_prints_itself(kernel: LoadedKernel) -> None:
    record = kernel.record((4, 2), (32, 4), 1024, [("pointer", 0), ("scalar", "float", 0.5)], cluster=(2,), cooperative=True)
    assert repr(record) == "<launch scale: grid (4, 2, 1) block (32, 4, 1) shared 1024 B cluster (2, 1, 1) cooperative; pointer 0, 0.5>"


def test_a_failing_launch_says_which_kernel(fake_driver: Any, kernel: LoadedKernel) -> None:
    record = kernel.record((1,), (32,), 0, [("pointer", 0)])
    fake_driver.set(fail_next=701, current_context=0xC001)
    with pytest.raises(DriverCallFailed) as error:
        record.launch([1], 0)
    assert first_line(error) == "W713: cuLaunchKernelEx of kernel scale on device 1 failed: CUDA_ERROR_FAKE (701), a fake error"
    record.launch([1], 0)
    assert fake_driver.launch_count == 1


def test_threads_do_not_mix_their_addresses(fake_driver: Any) -> None:
    """The interpreter lock is released during a launch, so another thread may launch the same record meanwhile."""
    mixed: list[tuple[int, ...]] = []
    barrier = threading.Barrier(4)

    def slow_call(config: Any, function: Any, addresses: Any, extra: Any) -> int:
        words = [ctypes.cast(address, ctypes.POINTER(ctypes.c_uint64))[0] for address in addresses._obj]
        barrier.wait(60)  # all four threads are inside
        again = [ctypes.cast(address, ctypes.POINTER(ctypes.c_uint64))[0] for address in addresses._obj]
        if words != again or len(set(words)) != 1:
            mixed.append((*words, *again))
        barrier.wait(60)
        return 0

    record = LaunchRecord("k", slow_call, ctypes.c_void_p(), make_config((1,), (32,), 0), [("pointer", 0), ("pointer", 1)], lambda *a: None)

    def work(me: int) -> None:
        for _ in range(20):
            record.launch([me, me], me)

    threads = [threading.Thread(target=work, args=(i + 1,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mixed == []
    assert len(record._prepared) <= 4


def test_scalars_set_while_another_thread_launches_reach_new_memory(fake_driver: Any, kernel: LoadedKernel) -> None:
    fake_driver.set(arg_count=1)
    record = kernel.record((1,), (32,), 0, [("scalar", "long long", 1)])
    record.set_scalar(0, 2)
    record._idle.clear()  # as if another thread had it
    record.launch([], 0)
    assert fake_driver.launch().args[0] == 2


def test_a_launch_costs_few_instructions(fake_driver: Any, kernel: LoadedKernel) -> None:
    """About 0.5 us were measured on a quiet machine, this driver's own log included."""
    record = kernel.record((128,), (256,), 0, [("pointer", i) for i in range(4)] + [("scalar", "int", 1)] * 3)  # type: ignore[arg-type]
    pointers = [0x7F0000000000 + 512 * i for i in range(4)]
    record.launch(pointers, 0)
    assert instructions_of(lambda: record.launch(pointers, 0)) < 90


# -- launches that are written out in the function of a call -----------------------------------------------------------


def written(record: LaunchRecord, scalars: list[tuple[int, str]] | None = None) -> Any:
    """The function of a call that launches `record` with addresses p0 and p1, stream 0x55 and a scalar s."""
    launch = LaunchText(["p0", "p1"][: record.pointer_count], scalars or [])
    parts = RunParts(["p0", "p1", "s"], steps=[launch], constants={"launch0": record.launch, "stream": lambda device: 0x55, "device": 0})
    return write_run(parts)


def test_a_written_launch_passes_what_was_recorded(fake_driver: Any, kernel: LoadedKernel) -> None:
    fake_driver.set(arg_count=3)
    record = kernel.record((3, 4, 5), (32, 2, 1), 1000, [("pointer", 1), ("pointer", 0), ("scalar", "int", 0)])
    run = written(record, [(2, "s")])
    for number in (7, 8):
        assert run(0x7F0000001000, 0x7F0000002000, number) == []
        launch = fake_driver.launch()
        assert (list(launch.grid), list(launch.block), launch.shared, launch.stream) == ([3, 4, 5], [32, 2, 1], 1000, 0x55)
        assert list(launch.args)[:2] == [0x7F0000002000, 0x7F0000001000] and launch.args[2] & 0xFFFFFFFF == number
    assert len(record._idle) == len(record._prepared) == 1 and "launch" not in run.__code__.co_names


def test_a_written_launch_with_tensor_maps_or_without_pointers(fake_driver: Any, kernel: LoadedKernel) -> None:
    fake_driver.set(arg_count=1)
    written(kernel.record((1,), (32,), 0, [("scalar", "long long", 6)]))(1, 2, 3)
    assert fake_driver.launch().args[0] == 6
    maps = kernel.record((1,), (32,), 0, [("pointer", 0), ("tensor_map", 0, bytes(128))])
    assert "launch0" in written(maps).__code__.co_names


def test_a_failing_written_launch_says_which_kernel_and_launches_again(fake_driver: Any, kernel: LoadedKernel) -> None:
    record = kernel.record((1,), (32,), 0, [("pointer", 0), ("pointer", 1)])
    run = written(record)
    fake_driver.set(fail_next=701, current_context=0xC001)
    with pytest.raises(DriverCallFailed) as error:
        run(1, 2, 3)
    assert first_line(error) == "W713: cuLaunchKernelEx of kernel scale on device 1 failed: CUDA_ERROR_FAKE (701), a fake error"
    assert len(record._idle) == 1
    record._idle.clear()  # as if another thread had it
    run(1, 2, 3)
    assert fake_driver.launch_count == 1 and len(record._prepared) == 2


# -- limits and attributes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": (1, 65536)}, "gridDim.y 65536; H200 allows 65535"),
        ({"grid": (2**31,)}, "gridDim.x 2147483648; H200 allows 2147483647"),
        ({"block": (1, 1, 65)}, "blockDim.z 65; H200 allows 64"),
        ({"block": (1025,)}, "threads per block 1025; H200 allows 1024"),
        ({"shared_bytes": 227 * 1024 + 1}, "bytes of shared memory per block: 232449; H200 allows 232448"),
        ({"cluster": (32,), "grid": (32,)}, "blocks per cluster 32; H200 allows 16"),
        ({"cluster": (2,), "grid": (3,)}, "gridDim.x 3; H200 allows multiples of the cluster's 2"),
    ],
)
def test_a_launch_beyond_a_limit_is_refused_when_it_is_recorded(kernel: LoadedKernel, change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"grid": (1,), "block": (32,), "shared_bytes": 0, "params": [], **change}
    with pytest.raises(LaunchBeyondLimit) as error:
        kernel.record(**arguments)
    assert first_line(error) == f"W760: kernel scale wants {message}"


def test_large_dynamic_shared_memory_is_allowed_once_and_never_lowered(fake_driver: Any, kernel: LoadedKernel) -> None:
    sets = fake_driver.get("attribute_sets")
    kernel.record((1,), (32,), 48 * 1024, [])
    assert fake_driver.get("attribute_sets") == sets
    kernel.record((1,), (32,), 200_000, [])
    kernel.record((1,), (32,), 100_000, [])
    kernel.record((1,), (32,), 200_000, [])
    assert fake_driver.function_attribute(8) == 200_000 and fake_driver.get("attribute_sets") == sets + 1


def test_a_cluster_launch_carries_its_shape_and_opts_in_above_eight(fake_driver: Any, kernel: LoadedKernel) -> None:
    kernel.record((16, 2), (32,), 0, [], cluster=(8,)).launch([], 0)
    launch = fake_driver.launch()
    assert (launch.count, launch.ids[0], list(launch.values[0])) == (1, 4, [8, 1, 1])
    assert fake_driver.function_attribute(14) == 0
    kernel.record((16, 2), (32,), 0, [], cluster=(16,))
    assert fake_driver.function_attribute(14) == 1


def test_a_cooperative_launch_needs_its_whole_grid_resident(fake_driver: Any, kernel: LoadedKernel) -> None:
    kernel.record((264,), (1024,), 0, [], cooperative=True).launch([], 0)
    launch = fake_driver.launch()
    assert (launch.count, launch.ids[0], launch.values[0][0]) == (1, 2, 1)
    with pytest.raises(CooperativeGridTooLarge) as error:
        kernel.record((265,), (1024,), 0, [], cooperative=True)
    assert first_line(error) == (
        "W761: kernel scale synchronises its grid of 265 blocks, and H200 can hold 264 of them at a time: 2 on each of 132 multiprocessors"
    )
    with pytest.raises(CooperativeGridTooLarge, match="can hold 8 of them at a time: 4 clusters of 2"):
        kernel.record((10,), (32,), 0, [], cluster=(2,), cooperative=True)


def test_occupancy_is_asked_of_the_driver(kernel: LoadedKernel, fake_driver: Any) -> None:
    assert kernel.blocks_per_sm(256, 100_000) == 2
    assert fake_driver.function_attribute(8) == 100_000  # otherwise the driver answers 0
    assert kernel.resident_clusters((4,), (256,)) == 4
    assert kernel.largest_cluster((256,)) == 16


# -- tensor maps --------------------------------------------------------------------------------------------------------


def test_a_tensor_map_follows_its_tensor(fake_driver: Any, kernel: LoadedKernel) -> None:
    encoded = encode_tensor_map(0x1000, 16, (4096, 2048), (8192,), (64, 8), swizzle_bytes=128)
    words = [int.from_bytes(encoded[i : i + 8], "little") for i in range(0, 48, 8)]
    assert words == [0x1000, 4096, 8192, 64, 1, 3]
    record = kernel.record((1,), (32,), 0, [("scalar", "int", 5), ("tensor_map", 1, encoded), ("pointer", 0)])
    fake_driver.set(arg_count=3, map_slot=1)
    record.launch([7, 0x2000], 0)
    record.launch([7, 0x3000], 0)
    for back, address in enumerate([0x3000, 0x2000]):
        assert bytes(fake_driver.launch(back).map) == address.to_bytes(8, "little") + encoded[8:]
        assert fake_driver.launch(back).args[2] == 7
    with pytest.raises(BadParameter, match="needs 16 byte alignment"):
        record.launch([7, 0x3001], 0)


def test_a_tensor_map_that_the_driver_refuses(fake_driver: Any) -> None:
    with pytest.raises(TensorMapRejected, match=r"16 bit elements, extents \(512,\), strides \(\) B, box \(512,\): error 1"):
        encode_tensor_map(0x1000, 16, (512,), (), (512,))


# -- on a GPU -----------------------------------------------------------------------------------------------------------


def loaded_on(device: int, source: str = SCALE, entry: str = "scale") -> LoadedKernel:
    from weft.arch import arch_of_device

    compiled = compile_cubin(source, entry, arch_of_device(device).nvrtc_target)
    return load_kernel(compiled.cubin, entry, device, compiled.resources)


def scale_record(kernel: LoadedKernel, n: int, shared_bytes: int = 1024) -> LaunchRecord:
    params = [("pointer", 0), ("pointer", 1), ("scalar", "float", 3.0), ("scalar", "long long", n), ("scalar", "int", -2), ("scalar", "bool", True)]
    return kernel.record((-(-n // 256),), (256,), shared_bytes, params)  # type: ignore[arg-type]


@pytest.mark.gpu
def test_gpu_runs_a_kernel_on_the_current_stream(real_device: int) -> None:
    import torch

    from weft.runtime.launch import current_stream_reader

    n, stream_of = 100_001, current_stream_reader()
    kernel = loaded_on(real_device)
    assert kernel.attributes.registers == kernel.resources.registers
    assert kernel.attributes.static_shared_bytes == kernel.resources.static_shared_bytes
    assert kernel.attributes.local_bytes == kernel.resources.stack_bytes
    record = scale_record(kernel, n)
    a, b = torch.randn(n, device=f"cuda:{real_device}"), torch.empty(n, device=f"cuda:{real_device}")
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            b.zero_()
            record.launch([a.data_ptr(), b.data_ptr()], stream_of(real_device))
            torch.testing.assert_close(b, -(a * 3.0 - 2), rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
def test_gpu_launches_are_captured_and_replayed(real_device: int) -> None:
    import torch

    from weft.runtime.launch import current_stream_reader

    n, stream_of = 4096, current_stream_reader()
    a, b, c = (torch.zeros(n, device=f"cuda:{real_device}") for _ in range(3))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # loading, attributes and the first launch all happen inside the capture
        record = scale_record(loaded_on(real_device), n, 100_000)
        record.launch([a.data_ptr(), b.data_ptr()], stream_of(real_device))
        record.launch([b.data_ptr(), c.data_ptr()], stream_of(real_device))
    record.set_scalar(2, 100.0)  # the graph keeps the arguments it was captured with
    a.fill_(1.0)
    graph.replay()
    torch.testing.assert_close(c, torch.full_like(c, 5.0))


@pytest.mark.gpu
def test_gpu_launches_from_a_thread_that_never_touched_cuda(real_device: int) -> None:
    import torch

    n = 1000
    record = scale_record(loaded_on(real_device), n)
    a, b = torch.ones(n, device=f"cuda:{real_device}"), torch.zeros(n, device=f"cuda:{real_device}")
    torch.cuda.synchronize()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            record.launch([a.data_ptr(), b.data_ptr()], 0)
        except BaseException as error:  # noqa: BLE001 - the test's thread must hand everything to the test
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert not failures
    torch.testing.assert_close(b, torch.full_like(b, -1.0))


@pytest.mark.gpu
def test_gpu_launches_on_a_device_that_is_not_current(real_device: int) -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    from weft.runtime.launch import current_stream_reader

    n, stream_of = 1000, current_stream_reader()
    record = scale_record(loaded_on(1), n)
    a, b = torch.ones(n, device="cuda:1"), torch.zeros(n, device="cuda:1")
    for stream in (torch.cuda.default_stream(1), torch.cuda.Stream(1)):
        b.zero_()
        torch.cuda.synchronize(1)
        with torch.cuda.stream(stream), torch.cuda.device(0):
            assert torch.cuda.current_device() == 0
            record.launch([a.data_ptr(), b.data_ptr()], stream_of(1))
        torch.cuda.synchronize(1)
        torch.testing.assert_close(b, torch.full_like(b, -1.0))


GRID_SYNC = """
extern "C" __global__ void k(unsigned* arrived, int* out) {
  if (threadIdx.x == 0) {
    atomicAdd(arrived, 1u);
    while (*(volatile unsigned*)arrived < gridDim.x) { }
    out[blockIdx.x] = *(volatile unsigned*)arrived;
  }
}
"""


@pytest.mark.gpu
def test_gpu_runs_the_largest_cooperative_grid_and_no_larger(real_device: int) -> None:
    import torch

    kernel = loaded_on(real_device, GRID_SYNC, "k")
    blocks = kernel.blocks_per_sm(256, 50_000) * kernel.arch.sm_count
    arrived = torch.zeros(1, dtype=torch.int32, device=f"cuda:{real_device}")
    out = torch.zeros(blocks, dtype=torch.int32, device=f"cuda:{real_device}")
    record = kernel.record((blocks,), (256,), 50_000, [("pointer", 0), ("pointer", 1)], cooperative=True)
    record.launch([arrived.data_ptr(), out.data_ptr()], 0)
    torch.cuda.synchronize()
    assert out.eq(blocks).all()
    with pytest.raises(CooperativeGridTooLarge):
        kernel.record((blocks + 1,), (256,), 50_000, [("pointer", 0), ("pointer", 1)], cooperative=True)


CLUSTER_RANK = """
extern "C" __global__ void k(int* out) {
  unsigned rank, size;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  if (threadIdx.x == 0) out[blockIdx.x] = rank * 100 + size;
}
"""


@pytest.mark.gpu
@pytest.mark.parametrize("blocks", [1, 2, 8, 16])
def test_gpu_launches_clusters(real_device: int, blocks: int) -> None:
    import torch

    kernel = loaded_on(real_device, CLUSTER_RANK, "k")
    if kernel.arch.max_cluster_blocks < blocks:
        pytest.skip("smaller clusters only")
    assert kernel.largest_cluster((128,)) >= 8
    assert kernel.resident_clusters((blocks,), (128,), 60_000) > 0
    out = torch.zeros(32, dtype=torch.int32, device=f"cuda:{real_device}")
    kernel.record((32,), (128,), 60_000, [("pointer", 0)], cluster=(blocks,)).launch([out.data_ptr()], 0)
    assert out.tolist() == [i % blocks * 100 + blocks for i in range(32)]


TENSOR_COPY = """
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void k(const __grid_constant__ Map map, unsigned short* out) {
  __shared__ alignas(128) unsigned short tile[8 * 64];
  __shared__ alignas(8) unsigned long long bar;
  unsigned b = (unsigned)__cvta_generic_to_shared(&bar), t = (unsigned)__cvta_generic_to_shared(tile);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(b));
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 1024;" :: "r"(b) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(t), "l"(&map), "r"(64), "r"(16), "r"(b) : "memory");
  }
  __syncthreads();
  asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra L; }" :: "r"(b) : "memory");
  for (int i = threadIdx.x; i < 512; i += blockDim.x) out[i] = tile[i];
}
"""


@pytest.mark.gpu
def test_gpu_tensor_maps_follow_their_tensors(real_device: int) -> None:
    import torch

    kernel = loaded_on(real_device, TENSOR_COPY, "k")
    if not kernel.arch.has_tma:
        pytest.skip("no tensor copies")
    device = f"cuda:{real_device}"
    tensors = [torch.randint(-30000, 30000, (64, 256), dtype=torch.int16, device=device) for _ in range(3)]
    encoded = encode_tensor_map(tensors[0].data_ptr(), 16, (256, 64), (512,), (64, 8))
    record = kernel.record((1,), (128,), 0, [("tensor_map", 0, encoded), ("pointer", 1)])
    for tensor in tensors:
        out = torch.zeros(8, 64, dtype=torch.int16, device=device)
        record.launch([tensor.data_ptr(), out.data_ptr()], 0)
        assert torch.equal(out, tensor[16:24, 64:128])


@pytest.mark.gpu
def test_gpu_occupancy_agrees_with_the_model(real_device: int) -> None:
    kernel = loaded_on(real_device)
    for threads in (32, 96, 128, 256, 512, 1024):
        for shared_bytes in (0, 1000, 16 * 1024, 48 * 1024, 100_000, 113 * 1024, 200_000):
            model = kernel.arch.blocks_per_sm(threads, kernel.resources.registers, shared_bytes + kernel.resources.static_shared_bytes)
            assert kernel.blocks_per_sm(threads, shared_bytes) == model, (threads, shared_bytes)


def microseconds(launch: Callable[[], None], synchronize: Callable[[], None], launches: int = 500) -> float:
    """Best host time of a launch; few launches at a time, so that the queue never fills."""
    best_s = 1.0
    for _ in range(20):
        synchronize()
        best_s = min(best_s, timeit.timeit(launch, number=launches) / launches)
    return best_s * 1e6


@pytest.mark.gpu
def test_gpu_host_time_of_a_launch(real_device: int) -> None:
    """Python and the driver together; the driver alone takes about 2 us for a launch."""
    import torch

    record = scale_record(loaded_on(real_device), 1000)
    a, b = (torch.zeros(1000, device=f"cuda:{real_device}") for _ in range(2))
    pointers = [a.data_ptr(), b.data_ptr()]
    best_us = microseconds(lambda: record.launch(pointers, 0), torch.cuda.synchronize)
    print(f"host time of a launch: {best_us:.2f} us")
    assert best_us < 10
