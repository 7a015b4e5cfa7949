"""Launching: arguments, options, faults, isolation, the words of a finding."""

from __future__ import annotations

import json
import os
import signal
import threading

import numpy as np
import pytest
from row_kernels import RMSNORM, SOFTMAX, aligned, from_bf16, rmsnorm_shared_bytes, run_rmsnorm, run_softmax, to_bf16, unit
from rule_kernels import SHARED_BYTES, rule_kernel, run_rule

from weft.device.library import translation_unit
from weft.emulator import BadLaunch, Buffer, ChipLimits, EmulatedKernel, KernelFault, Scalar, encode_tensor_map
from weft.emulator.tensor_map import BadTensorMap

COPY = """extern "C" __global__ void copy(const float* __restrict__ T0, float* T1, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) weft::store_global(T1 + i, weft::load_global(T0 + i));
}"""


def copy_arguments(n: int, *, initialised: bool = False) -> tuple[list, np.ndarray]:
    x, y = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
    return [Buffer.of(x, "T0"), Buffer.of(y, "T1", written=True, initialised=initialised), Scalar("int", n)], y


@pytest.fixture(scope="module")
def copy_kernel() -> EmulatedKernel:
    return EmulatedKernel(translation_unit(COPY), "copy", check="races")


@pytest.mark.parametrize("isolate", [False, True])
def test_a_kernel_writes_the_callers_memory(copy_kernel: EmulatedKernel, isolate: bool) -> None:
    args, y = copy_arguments(1000)
    report = copy_kernel.launch((8, 1, 1), (128, 1, 1), 0, args, isolate=isolate)
    assert report.findings == () and (y == np.arange(1000)).all()


def test_a_finding_names_the_tensor_the_thread_and_the_line() -> None:
    kernel = EmulatedKernel(translation_unit(COPY.replace("i < n", "i <= n")), "copy")
    args, _ = copy_arguments(100)
    with pytest.raises(KernelFault) as fault:
        kernel.launch((1, 1, 1), (128, 1, 1), 0, args)
    finding = fault.value.report.findings[0]
    assert finding.text() == (
        "  out-of-bounds: global read of 4 bytes out of bounds by thread (100,0,0), warp 3 lane 4; nearest is 'T0' of 400 bytes: offset 400\n"
        f"    line {finding.line}: if (i <= n) weft::store_global(T1 + i, weft::load_global(T0 + i));\n"
        "    hint: predicate the access, or allocate what the index reaches"
    )
    assert kernel.source.split("\n")[finding.line - 1].strip() == finding.line_text
    assert (finding.thread, finding.block, finding.count) == ("thread (100,0,0), warp 3 lane 4", (0, 0, 0), 1)


def test_sampled_blocks_run_alone(copy_kernel: EmulatedKernel) -> None:
    args, y = copy_arguments(1024)
    copy_kernel.launch((8, 1, 1), (128, 1, 1), 0, args, sample_blocks=[0, 7])
    assert np.flatnonzero(y).min() == 1 and (y[128:896] == 0).all() and y[1023] == 1023
    args, y = copy_arguments(1024)
    copy_kernel.launch((8, 1, 1), (128, 1, 1), 0, args, sample_blocks=3)
    assert {i // 128 for i in np.flatnonzero(y)} == {0, 3, 7}


def test_an_output_left_unwritten_is_found(copy_kernel: EmulatedKernel) -> None:
    args, _ = copy_arguments(1000)
    report = copy_kernel.launch((7, 1, 1), (128, 1, 1), 0, args, raise_findings=False)
    assert [f.message for f in report.findings] == ["416 of the 4000 bytes of 'T1' were never written, the first at offset 3584"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (dict(block=(2048, 1, 1)), "2048 threads per block; H100 allows 1024"),
        (dict(shared_bytes=300_000), "300000 bytes of shared memory; H100 allows 232448"),
        (dict(grid=(0, 1, 1)), "must be positive"),
        (dict(cluster=(3, 1, 1)), "not a multiple of cluster"),
        (dict(args=2), "2 arguments for 3 parameters"),
        (dict(scalar="long long"), 'argument 2 is "long long"; the parameter has 4 bytes'),
        (dict(scalar="quaternion"), 'argument 2 has type "quaternion"'),
    ],
)
def test_a_wrong_launch_is_refused(copy_kernel: EmulatedKernel, change: dict, problem: str) -> None:
    args, _ = copy_arguments(128)
    args[2] = Scalar(change.get("scalar", "int"), 128)
    grid, block = change.get("grid", (1, 1, 1)), change.get("block", (128, 1, 1))
    with pytest.raises(BadLaunch, match=problem.replace("(", r"\(")):
        copy_kernel.launch(grid, block, change.get("shared_bytes", 0), args[: change.get("args", 3)], cluster=change.get("cluster", (1, 1, 1)))


def test_an_output_may_be_a_view_of_an_input(copy_kernel: EmulatedKernel) -> None:
    memory = np.arange(512, dtype=np.float32)
    args = [Buffer.of(memory, "T0"), Buffer.of(memory[256:], "T1", written=True), Scalar("int", 256)]
    for check in ("bounds", "races"):
        EmulatedKernel(copy_kernel.source, "copy", check=check).launch((2, 1, 1), (128, 1, 1), 0, args)
        assert (memory[256:] == np.arange(256)).all()


def test_constants_may_be_read_before_griddep_wait() -> None:
    text = COPY.replace(
        "  if (i < n) weft::store_global(T1 + i, weft::load_global(T0 + i));",
        """
  const float v = i < n ? weft::load_global(T0 + i) : 0.f;
  weft::griddep_wait();
  if (i < n) weft::store_global(T1 + i, v);""",
    )
    kernel = EmulatedKernel(translation_unit(text), "copy", check="races")
    args, _ = copy_arguments(128)
    assert kernel.launch((1, 1, 1), (128, 1, 1), 0, args, raise_findings=False).kinds() == {"access-before-griddep-wait"}
    args[0] = Buffer.of(np.zeros(128, np.float32), "T0", constant=True)
    kernel.launch((1, 1, 1), (128, 1, 1), 0, args)


def test_the_chips_limits_apply() -> None:
    kernel = EmulatedKernel(translation_unit(COPY), "copy", limits=ChipLimits(name="small", threads_per_block=64))
    with pytest.raises(BadLaunch, match="small allows 64"):
        kernel.launch((1, 1, 1), (128, 1, 1), 0, copy_arguments(1)[0])


def test_launch_bounds_apply() -> None:
    text = COPY.replace("void copy", "void __launch_bounds__(64, 2) copy") + COPY.replace("void copy", "void other")
    with pytest.raises(BadLaunch, match="its __launch_bounds__ are 64"):
        EmulatedKernel(translation_unit(text), "copy").launch((1, 1, 1), (128, 1, 1), 0, copy_arguments(128)[0])
    EmulatedKernel(translation_unit(text), "other").launch((1, 1, 1), (128, 1, 1), 0, copy_arguments(128)[0])


def test_text_without_entry_is_refused() -> None:
    with pytest.raises(BadLaunch, match="no WEFT_ENTRY"):
        EmulatedKernel(translation_unit(COPY), "other")


# ---- faults

FAULTS = [
    ("a null pointer", "*(volatile float*)8 = 1.f;", "memory-fault"),
    ("an endless loop", "for (volatile int i = 0;; i = i + 1) {}", "timeout"),
    ("an endless loop with barriers", "for (;;) weft::block_sync();", "timeout"),
    (
        "deep recursion",
        """struct R {
             static int down(volatile int* a, int k) {
               volatile char space[4096];
               space[0] = (char)k;
               return down((volatile int*)space, k + 1) + *a + space[1];
             }
           };
           volatile int a = 0;
           weft::store_global(T1, (float)R::down(&a, 0));""",
        "stack-overflow",
    ),
]  # fmt: skip


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize(("claim", "body", "kind"), FAULTS, ids=lambda v: v if " " in v and len(v) < 40 else "")
def test_a_fault_is_a_finding_and_the_process_lives(claim: str, body: str, kind: str, isolate: bool) -> None:
    report, _ = run_rule(body, check="bounds", timeout_s=0.3, isolate=isolate)
    assert report.kinds() == {kind}, [f.text() for f in report.findings]
    assert run_rule("weft::block_sync();", check="bounds")[0].findings == ()


def test_a_child_that_dies_is_a_finding() -> None:
    report, _ = run_rule("__builtin_trap();", check="bounds", isolate=True)
    assert report.kinds() == {"crash"} and "SIGILL" in report.findings[0].message


# ---- schedules


def test_a_seed_gives_the_same_run_each_time() -> None:
    runs = [run_rmsnorm(seed=seed)[0].switches for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_isolated_runs_agree() -> None:
    assert run_softmax(isolate=True)[1] == run_softmax()[1]
    assert run_rmsnorm(isolate=True, seed=3)[1] == run_rmsnorm(seed=3)[1]


def test_launches_of_different_shapes_follow_each_other() -> None:
    for threads, check in ((64, "races"), (128, "bounds"), (1024, "races"), (64, "bounds"), (32, "races")):
        report, t1 = run_rule("weft::block_sync(); weft::store_global(T1 + t, 1.f);", blocks=1, threads=threads, check=check)
        assert report.findings == () and t1.sum() == threads


GRID_BARRIER = """if (t == 0) {
    weft::atomic_add_acquire_release(flags, 1u);
    while (weft::load_acquire(flags) < gridDim.x) weft::nanosleep(10);
  }
  weft::block_sync();"""


def test_many_resident_blocks_synchronise() -> None:
    report, t1 = run_rule(GRID_BARRIER + "if (t == 0) weft::store_global(T1 + b, 1.f);", blocks=132, threads=32)
    assert t1.sum() == 132 and report.findings == ()


def test_grid_limit_of_resident_blocks_deadlocks() -> None:
    kernel = EmulatedKernel(rule_kernel(GRID_BARRIER, "races").source, "rule", check="races", limits=ChipLimits(resident_blocks=4, multiprocessors=1))
    flags = np.zeros(64, np.uint32)
    none = Buffer(0, 0, "none")
    args = [none, none, Buffer.of(flags, "flags", written=True), none, Scalar("int", 0)]
    assert kernel.launch((4, 1, 1), (32, 1, 1), SHARED_BYTES, args).findings == ()
    flags[:] = 0
    assert kernel.launch((5, 1, 1), (32, 1, 1), SHARED_BYTES, args, raise_findings=False).kinds() == {"deadlock"}


def test_a_block_that_waits_for_one_that_does_not_fit_beside_it_deadlocks() -> None:
    """An H100 holds 264 blocks of 1024 threads; the last of 265 starts when one of the others ends, and they may all wait."""
    body = "if (t == 0) while (weft::load_acquire(flags) == 0) weft::nanosleep(10);"
    last = f"if (b + 1 < gridDim.x) {{ {body} }} else if (t == 0) weft::store_release(flags, 1u);"
    limits = ChipLimits(multiprocessors=2, resident_blocks=64)
    kernel = EmulatedKernel(rule_kernel(last, "races").source, "rule", check="races", limits=limits)
    none = Buffer(0, 0, "none")

    def kinds(blocks: int, **options) -> set[str]:
        flags = np.zeros(64, np.uint32)
        args = [none, none, Buffer.of(flags, "flags", written=True), none, Scalar("int", 0)]
        return kernel.launch((blocks, 1, 1), (1024, 1, 1), SHARED_BYTES, args, raise_findings=False, **options).kinds()

    assert kinds(4) == set() and kinds(5) == {"deadlock"}
    assert kinds(4, cooperative=True) == set()
    with pytest.raises(BadLaunch, match="a cooperative launch of 5 blocks; H100 runs 4 of them at once"):
        kinds(5, cooperative=True)


def test_a_seed_changes_the_order_in_which_blocks_start() -> None:
    """Waiting for the block with the number below is safe only where numbers are drawn as blocks start."""
    wait = "if (t == 0 && b > 0) while (weft::load_acquire(flags + b - 1) == 0) weft::nanosleep(10); if (t == 0) weft::store_release(flags + b, 1u);"
    kernel = EmulatedKernel(rule_kernel(wait, "races").source, "rule", check="races", limits=ChipLimits(resident_blocks=2, multiprocessors=1))
    none = Buffer(0, 0, "none")

    def kinds(seed: int | None) -> set[str]:
        flags = np.zeros(64, np.uint32)
        args = [none, none, Buffer.of(flags, "flags", written=True), none, Scalar("int", 0)]
        return kernel.launch((6, 1, 1), (32, 1, 1), SHARED_BYTES, args, seed=seed, raise_findings=False).kinds()

    assert kinds(None) == set() and "deadlock" in kinds(0) | kinds(1) | kinds(2)


# ---- names and timeline


def test_roles_and_names_appear_in_reports() -> None:
    report, _ = run_rmsnorm(RMSNORM.replace("mbarrier_init(empty_0 + s, 8)", "mbarrier_init(empty_0 + s, 9)"), raise_findings=False)
    text = report.findings[0].text()
    assert "[load T0] an mbarrier" in text and "shared 'empty_0'" in text and "1 of 9 arrivals are missing in phase 0" in text


def test_a_trace_has_a_track_per_role_and_copy(tmp_path) -> None:
    run_rmsnorm(trace=tmp_path / "trace.json", seed=1)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"warp 00 compute 0", "warp 04 compute 1", "load into full_0[0] slot 00"} <= tracks
    assert any(t.endswith("load T0") for t in tracks) and all(e["dur"] > 0 for e in events if e["ph"] == "X")
    assert any(e["args"]["detail"].startswith("full_0[") for e in events if e["ph"] == "X")


# ---- tensor maps

TENSOR = """extern "C" __global__ void tile(const __grid_constant__ weft::TensorMap from, const __grid_constant__ weft::TensorMap to, float* T2, int x, int y) {
  float* s = (float*)weft::dynamic_shared();
  unsigned long long* bar = (unsigned long long*)(weft::dynamic_shared() + 8192);
  if (threadIdx.x == 0) { weft::mbarrier_init(bar, 1); weft::fence_mbarrier_init(); }
  weft::block_sync();
  if (threadIdx.x == 0) { weft::mbarrier_arrive_expect_tx(bar, 8 * 16 * 4); weft::tensor_load<2>(s, &from, x, y, bar); }
  weft::mbarrier_wait_phase(bar, 0);
  for (int i = threadIdx.x; i < 128; i += 32) weft::store_global(T2 + i, weft::load_shared(s + i));
  weft::block_sync();
  if (threadIdx.x == 0) { weft::fence_proxy_async(); weft::tensor_store<2>(&to, s, x, y); weft::bulk_commit(); weft::bulk_wait<0>(); }
}"""


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize(("x", "y"), [(0, 0), (8, 16), (24, 28), (-4, -3), (100, 0)])
def test_tensor_copies_move_boxes_and_fill_what_lies_outside(x: int, y: int, isolate: bool) -> None:
    rows, cols = 32, 28
    source, copy, dense = aligned((rows, cols), np.float32), aligned((rows, cols), np.float32, -1), aligned((16, 8), np.float32, -1)
    source[...] = np.arange(rows * cols).reshape(rows, cols)
    maps = [encode_tensor_map(a.ctypes.data, (cols, rows), (cols * 4,), (8, 16), 4) for a in (source, copy)]
    kernel = EmulatedKernel(translation_unit(TENSOR), "tile", check="races")
    buffers = [Buffer.of(source, "T0"), Buffer.of(copy, "T1", written=True)]
    args = [*(Scalar("tensor_map", m) for m in maps), Buffer.of(dense, "T2", written=True, initialised=False), Scalar("int", x), Scalar("int", y)]
    if isolate and (x, y) != (8, 16):
        return
    kernel.launch((1, 1, 1), (32, 1, 1), 8200, args, extra_buffers=buffers, seed=1, isolate=isolate)
    padded = np.zeros((rows + 200, cols + 200), np.float32)
    padded[100 : 100 + rows, 100 : 100 + cols] = source
    assert (dense == padded[100 + y : 116 + y, 100 + x : 108 + x]).all()
    expected = np.full((rows + 200, cols + 200), -1, np.float32)
    expected[100 + y : 116 + y, 100 + x : 108 + x] = padded[100 + y : 116 + y, 100 + x : 108 + x]
    assert (copy == expected[100 : 100 + rows, 100 : 100 + cols]).all()


WATCHED_LOAD = """
  if (t == 0) { weft::mbarrier_init(bar, 1); weft::fence_mbarrier_init(); }
  weft::block_sync();
  if (t == 0) { weft::mbarrier_arrive_expect_tx(bar, 256); weft::bulk_load(s, T0 + 64, 256, bar); }
  for (int i = 0; i < 128; i++) {
    weft::block_sync();
    if (t == 0) { weft::store_global(T1 + 2 * i, weft::load_shared(s)); weft::store_global(T1 + 2 * i + 1, weft::load_shared(s + 63)); }
  }
  weft::mbarrier_wait_phase(bar, 0);
"""


def test_the_pieces_of_a_load_come_in_any_order() -> None:
    """What thread 0 sees of the first and the last element before it has waited, in 30 orders: neither, either of them alone, both."""
    seen = set()
    for seed in range(30):
        _, t1 = run_rule(WATCHED_LOAD, check="bounds", blocks=1, seed=seed)
        seen |= {(bool(first == 64.0), bool(last == 127.0)) for first, last in t1[:256].reshape(-1, 2)}
    assert seen == {(False, False), (True, False), (False, True), (True, True)}


CUT = """extern "C" __global__ void cut(const __grid_constant__ weft::TensorMap to, int rows, int columns, int x, int swizzle) {
  float* s = (float*)weft::dynamic_shared();
  for (int i = threadIdx.x; i < rows * columns; i += 32) {
    const int at = i / columns * 8 + i % columns;
    weft::store_shared(s + (swizzle ? at ^ ((at >> 5 & 1) << 2) : at), (float)i);
  }
  weft::fence_proxy_async_shared();
  weft::block_sync();
  if (threadIdx.x == 0) { weft::tensor_store<2>(&to, s, x, 0); weft::bulk_commit(); weft::bulk_wait<0>(); }
}"""


@pytest.mark.parametrize("swizzle_bytes", [0, 32])
@pytest.mark.parametrize(("rows", "columns", "found"), [(3, 5, set()), (2, 5, {"uninitialised-read"}), (3, 4, {"uninitialised-read"}), (16, 8, set())])
def test_of_a_cut_tile_only_what_is_stored_must_be_written(rows: int, columns: int, found: set[str], swizzle_bytes: int) -> None:
    """The tensor has 3 rows, of which 5 columns lie in the box: what lies in the rest of the box's shared memory goes nowhere."""
    target = aligned((3, 28), np.float32, -1)
    map_ = encode_tensor_map(target.ctypes.data, (28, 3), (112,), (8, 16), 4, swizzle_bytes=swizzle_bytes)
    args = [Scalar("tensor_map", map_), *(Scalar("int", v) for v in (rows, columns, 23, swizzle_bytes))]
    kernel = EmulatedKernel(translation_unit(CUT), "cut", check="races")
    report = kernel.launch((1, 1, 1), (32, 1, 1), 512, args, extra_buffers=[Buffer.of(target, "T0", written=True)], raise_findings=False)
    assert report.kinds() == found, [f.text() for f in report.findings]
    if not found:
        expected = np.full((3, 28), -1, np.float32)
        expected[:, 23:] = np.arange(rows * columns).reshape(rows, columns)[:3, :5]
        assert (target == expected).all()


def test_swizzled_boxes_exchange_chunks_by_row() -> None:
    source, dense = aligned((16, 32), np.float32), aligned((16, 32), np.float32, -1)
    source[...] = np.arange(512).reshape(16, 32)
    loads = TENSOR.split("  weft::block_sync();\n  if (threadIdx.x == 0) { weft::fence")[0] + "}"
    text = loads.replace("8 * 16 * 4", "32 * 16 * 4").replace("i < 128", "i < 512")
    map_ = encode_tensor_map(source.ctypes.data, (32, 16), (128,), (32, 16), 4, swizzle_bytes=128)
    args = [Scalar("tensor_map", map_), Scalar("tensor_map", map_), Buffer.of(dense, "T2", written=True), Scalar("int", 0), Scalar("int", 0)]
    EmulatedKernel(translation_unit(text), "tile").launch((1, 1, 1), (32, 1, 1), 8200, args, extra_buffers=[Buffer.of(source, "T0")])
    chunks = source.reshape(16, 8, 4)
    expected = np.stack([chunks[r][[c ^ (r % 8) for c in range(8)]] for r in range(16)]).reshape(16, 32)
    assert (dense == expected).all()


def test_a_bad_tensor_map_is_refused() -> None:
    with pytest.raises(BadTensorMap, match="a row of the box has 8 bytes"):
        encode_tensor_map(0, (4, 4), (16,), (2, 2), 4)
    args = [Scalar("tensor_map", bytes(128))] * 2 + [Buffer(0, 0, "T2"), Scalar("int", 0), Scalar("int", 0)]
    report = EmulatedKernel(translation_unit(TENSOR), "tile").launch((1, 1, 1), (32, 1, 1), 8200, args, raise_findings=False)
    assert report.kinds() == {"bad-tensor-map"}


def test_bf16_helpers_round_to_even() -> None:
    x = np.array([1.0, 1.00390625, 1.01171875, 3.4e38], np.float32)
    assert (from_bf16(to_bf16(x)) == np.array([1.0, 1.0, 1.015625, np.inf], np.float32)).all()


def test_ctrl_c_ends_a_launch() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background are started with the signal ignored
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            run_rule("for (;;) weft::block_sync();", check="bounds", timeout_s=60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert run_rule("weft::block_sync();", check="bounds")[0].findings == ()


def test_a_timeout_names_a_thread_and_its_line() -> None:
    report, _ = run_rule('WEFT_ROLE("spinner"); WEFT_LINE_NOTE("T5 = exp(T4)"); for (;;) weft::block_sync();', check="bounds", timeout_s=0.2)
    assert "[spinner]" in report.findings[0].message and 'at "T5 = exp(T4)"' in report.findings[0].message and "block_sync" in report.findings[0].line_text


def test_many_equal_findings_cost_little() -> None:
    report, _ = run_rule("for (int i = 0; i < 20000; i++) { weft::store_shared(s, 1.f); weft::load_shared(s + 8); }", blocks=1, timeout_s=120)
    assert report.kinds() == {"data-race", "uninitialised-read"} and max(f.count for f in report.findings) > 10000


def test_a_long_report_is_whole() -> None:
    body = "\n".join(f'if (t == {t}) {{ WEFT_ROLE("role number {t}"); while (weft::load_acquire(flags + {t}) == 0) {{}} }}' for t in range(64))
    report, _ = run_rule(body, blocks=1, raise_findings=False)
    message = report.findings[0].message
    assert report.kinds() == {"deadlock"} and len(message) > 4000 and "role number 40" in message


@pytest.mark.parametrize("check", ["bounds", "races"])
def test_the_net_finds_raw_accesses_and_no_others(check: str) -> None:
    clean, raw = COPY, COPY.replace("weft::load_global(T0 + i)", "T0[i]")
    shared = COPY.replace("const int i", "((volatile float*)weft::dynamic_shared())[threadIdx.x] = 1.f;\n  const int i")
    for text, kinds in ((clean, set()), (raw, {"raw-access"}), (shared, {"raw-access"})):
        kernel = EmulatedKernel(translation_unit(text), "copy", check=check, raw_net=True)
        args, y = copy_arguments(256)
        report = kernel.launch((2, 1, 1), (128, 1, 1), 512, args, raise_findings=False)
        assert report.kinds() == kinds and (y == np.arange(256)).all()


def test_the_net_is_silent_over_kernels_that_keep_to_the_primitives() -> None:
    for text, entry, grid, block, shared_bytes in ((SOFTMAX, "softmax", 2, (128, 1, 1), 32), (RMSNORM, "rmsnorm", 2, (128, 3, 1), rmsnorm_shared_bytes())):
        x, y = aligned((4, 1024), np.uint16, 0x3F80), aligned((4, 1024), np.uint16)
        buffers = {"softmax": [x, y], "rmsnorm": [x, x, x, y]}[entry]
        args: list = [Buffer.of(b, f"T{i}", written=b is y) for i, b in enumerate(buffers)]
        if entry == "rmsnorm":
            args += [Scalar("int", 4), Scalar("float", 1e-5)]
        EmulatedKernel(unit(text), entry, check="races", raw_net=True).launch((grid, 1, 1), block, shared_bytes, args, seed=1)
