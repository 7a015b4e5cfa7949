"""The device half of the primitives on a GPU: the same kernels as in the emulator, and the same results."""

from __future__ import annotations

import numpy as np
import pytest
from primitive_values import VALUES, Value
from row_kernels import RMSNORM, SOFTMAX, from_bf16, rmsnorm_shared_bytes, to_bf16, unit
from rule_kernels import SHARED_BYTES, rule_unit, run_rule
from test_cast import FLOATS, TYPES, emulated, in_range, samples, source_of_casts_from
from test_rules import ALL, Rule

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu
LEGAL = [rule for rule in ALL if not rule.kinds]


def launch(source: str, entry: str, grid: int, block: tuple[int, int, int], shared_bytes: int, args: list, cluster: tuple[int, int, int] = (1, 1, 1)) -> None:
    """Compile for the GPU at hand and run; tensors in `args` are pointers, pairs are scalars."""
    from weft.arch import arch_of_device
    from weft.runtime.driver import load_kernel
    from weft.runtime.nvrtc import compile_cubin

    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    pointer = iter(range(len(tensors)))
    slots = [("pointer", next(pointer)) if isinstance(a, torch.Tensor) else ("scalar", *a) for a in args]
    loaded = load_kernel(compile_cubin(source, entry, arch_of_device(0).nvrtc_target).cubin, entry, 0)
    record = loaded.record((grid, 1, 1), block, shared_bytes, slots, cluster=cluster if cluster != (1, 1, 1) else None)
    record.launch([t.data_ptr() for t in tensors], torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()


def run_rule_on_gpu(body: str, blocks: int = 2, cluster: tuple[int, int, int] = (1, 1, 1), n: int = 0) -> np.ndarray:
    t0, t1 = torch.arange(256, dtype=torch.float32, device="cuda"), torch.zeros(1024, device="cuda")
    flags, work = torch.zeros(64, dtype=torch.int32, device="cuda"), torch.zeros(1024, device="cuda")
    launch(rule_unit(body), "rule", blocks, (64, 1, 1), SHARED_BYTES, [t0, t1, flags, work, ("int", n)], cluster)
    return t1.cpu().numpy()


@pytest.mark.parametrize("value", VALUES, ids=lambda v: v.claim)
def test_primitive_returns(value: Value) -> None:
    assert run_rule_on_gpu(value.body, cluster=value.cluster)[:128].tolist() == [value.expected(t, b) for b in (0, 1) for t in range(64)]


@pytest.mark.parametrize("rule", LEGAL, ids=lambda r: r.claim)
def test_what_is_legal_gives_what_the_emulator_gives(rule: Rule) -> None:
    options = {k: v for k, v in rule.options.items() if k in ("blocks", "cluster", "n")}
    _, t1 = run_rule(rule.body, **options)
    np.testing.assert_array_equal(run_rule_on_gpu(rule.body, **options), t1)


@pytest.mark.parametrize("source", TYPES)
def test_conversions_are_the_emulators(source: str) -> None:
    for target in TYPES:
        values = samples(source)
        if source in FLOATS and target not in FLOATS and target != "bool":
            values = in_range(values, target)
        result = torch.zeros(values.shape, dtype=TYPES[target][1], device="cuda")
        launch(source_of_casts_from(source), f"cast_{source}_{target}", 1, (32, 1, 1), 0, [values.cuda(), result, ("int", values.numel())])
        expected = emulated(values.contiguous(), source, target)
        as_bytes = (t.contiguous().view(torch.uint8).numpy() for t in (result.cpu(), expected))
        if target in ("float", "double"):
            np.testing.assert_array_equal(result.cpu().numpy(), expected.numpy())  # NaN payloads may differ
        else:
            np.testing.assert_array_equal(*as_bytes)


def bf16(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(to_bf16(x).view(np.int16)).cuda()


def test_softmax() -> None:
    rows, cols = 64, 4096
    x = from_bf16(to_bf16(np.random.default_rng(1).normal(size=(rows, cols)) * 3)).astype(np.float64)
    y = torch.zeros((rows, cols), dtype=torch.int16, device="cuda")
    launch(unit(SOFTMAX, cols), "softmax", rows, (128, 1, 1), 32, [bf16(x), y])
    exact = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    got = from_bf16(y.cpu().numpy().view(np.uint16))
    assert np.max(np.abs(got - exact) / exact) * 256 < 1.1  # half an ulp of bf16, and a little of __expf


@pytest.mark.parametrize("rows", [1, 23, 4001])
def test_warp_specialized_rmsnorm(rows: int) -> None:
    cols = 1024
    rng = np.random.default_rng(rows)
    x, z = (from_bf16(to_bf16(rng.normal(size=(rows, cols)))).astype(np.float64) for _ in range(2))
    w = from_bf16(to_bf16(rng.uniform(0.5, 1.5, size=cols))).astype(np.float64)
    y = torch.zeros((rows, cols), dtype=torch.int16, device="cuda")
    for _ in range(20):  # a race shows rarely
        y.zero_()
        launch(unit(RMSNORM, cols), "rmsnorm", 132, (128, 3, 1), rmsnorm_shared_bytes(cols), [bf16(x), bf16(z), bf16(w), y, ("int", rows), ("float", 1e-5)])
        h = x + z
        exact = h / np.sqrt((h**2).mean(1, keepdims=True) + 1e-5) * w
        got = from_bf16(y.cpu().numpy().view(np.uint16))
        assert np.max(np.abs(got - exact) / np.maximum(np.abs(exact), 1e-30)) * 256 < 1.1
