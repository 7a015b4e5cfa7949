"""Warm calls: what they find again, what they must not confuse, what they rewrite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from bytecode import instructions_of
from calls_on_cpu import add, assert_same, define, record_launches, relu, tensor

from weft import DataType, FusionDefinition
from weft.options import options
from weft.runtime import warm_path
from weft.runtime.calls import Caller
from weft.runtime.fec import FusionExecutorCache


def executor(fd: FusionDefinition) -> FusionExecutorCache:
    return fd.__dict__["fec"]


@pytest.fixture
def cold_calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every cold call of the test, by its values."""
    calls: list[Any] = []
    plain = Caller._cold

    def cold(self: Caller, inputs: Any, *rest: Any) -> Any:
        calls.append(inputs)
        return plain(self, inputs, *rest)

    monkeypatch.setattr(Caller, "_cold", cold)
    return calls


@pytest.fixture(params=["guards", "lookup only"])
def with_and_without_guards(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "lookup only":
        monkeypatch.setattr(warm_path, "guard_of", lambda tensors: warm_path.never)


X = torch.randn(4, 8)


def test_a_call_like_the_last_is_warm(cold_calls: list[Any], with_and_without_guards: None) -> None:
    fd = add()
    for _ in range(3):
        x, y = torch.randn(4, 8), torch.randn(4, 8)
        assert_same(fd.execute([x, y]), [x + y])
    assert len(cold_calls) == 1


def test_a_call_like_an_earlier_one_is_warm(cold_calls: list[Any], with_and_without_guards: None) -> None:
    fd = relu()
    for shape in ((4, 8), (4, 9), (4, 8), (4, 9), (4, 8)):
        x = torch.randn(shape)
        assert_same(fd.execute([x]), [x.relu()])
    assert len(cold_calls) == 2


@pytest.mark.parametrize(
    "other",
    [torch.randn(5, 8), torch.randn(8, 4).t(), torch.randn(4, 16)[:, ::2], torch.nn.Parameter(torch.randn(4, 8)), torch.randn(33)[1:].view(4, 8)],
    ids=["size", "order", "stride", "type", "alignment"],
)
def test_another_tensor_is_not_taken_for_the_last(other: torch.Tensor, cold_calls: list[Any], with_and_without_guards: None) -> None:
    fd = relu(contiguity=False)
    fd.execute([X])
    (result,) = fd.execute([other])
    assert_same([result], [other.detach().relu()])
    assert len(cold_calls) == 2
    fd.execute([other])
    assert len(cold_calls) == 2


def test_a_wrong_dtype_is_refused_after_a_right_one(with_and_without_guards: None) -> None:
    fd = relu()
    fd.execute([X])
    with pytest.raises(RuntimeError, match="to be bound to a tensor of dtype float, but got a tensor of dtype double"):
        fd.execute([X.double()])


@pytest.mark.parametrize("values", [[], [X, X], [None], [2.0], ["x"], [X.to("meta")]], ids=["none", "two", "None", "number", "text", "meta"])
def test_wrong_values_are_refused_after_right_ones(values: list[Any], with_and_without_guards: None) -> None:
    fd = relu()
    fd.execute([X])
    with pytest.raises(RuntimeError, match="Expected|W147"):
        fd.execute(values)


def test_a_negation_that_is_still_to_be_done_is_refused_after_a_plain_tensor(with_and_without_guards: None) -> None:
    fd = relu(1, contiguity=False)
    plain = torch.randn(4, dtype=torch.cfloat)
    assert_same(fd.execute([plain.imag]), [plain.imag.relu()])
    with pytest.raises(RuntimeError, match="still to be done"):
        fd.execute([plain.conj().imag])


# ---------------------------------------------------------------- scalars
def scaled() -> FusionDefinition:
    def build(fd: FusionDefinition) -> None:
        x, s, n = tensor(fd, 1), fd.define_scalar(DataType.Double), fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.add(fd.ops.mul(x, s), fd.ops.mul(n, fd.ops.add(n, 1))))

    return define(build)


def test_scalars_are_rewritten_at_every_call(cold_calls: list[Any]) -> None:
    fd, x = scaled(), torch.randn(5)
    for s, n in ((1.5, 2), (-3.0, 7), (0.25, -1), (2.0, 2**20)):
        assert_same(fd.execute([x, s, n]), [x * s + n * (n + 1)])
    assert len(cold_calls) == 1


def test_the_type_of_a_scalar_is_part_of_the_signature(cold_calls: list[Any]) -> None:
    fd, x = scaled(), torch.randn(5)
    fd.execute([x, 1.5, 2])
    assert_same(fd.execute([x, 3, True]), [x * 3 + 2])
    assert len(cold_calls) == 2
    with pytest.raises(RuntimeError, match=r"Scalar value 2\.5 is not compatible with the expected data type: int64_t"):
        fd.execute([x, 1.5, 2.5])


def test_sizes_that_depend_on_a_scalar_follow_it() -> None:
    fd = define(lambda fd: fd.add_output(fd.ops.iota(fd.define_scalar(DataType.Int), 0, 2, DataType.Int)))
    for n in (5, 8, 5, 0, 1):
        assert_same(fd.execute([n]), [torch.arange(0, 2 * n, 2)])
    assert len(executor(fd)._caller._prepared) == 4  # type: ignore[union-attr]


def test_a_cpu_scalar_is_read_at_every_call(cold_calls: list[Any]) -> None:
    fd = define(lambda fd: fd.add_output(fd.ops.mul(tensor(fd, 1), fd.define_tensor(shape=[], contiguity=[], is_cpu=True))))
    x, s = torch.randn(5), torch.tensor(2.0)
    assert_same(fd.execute([x, s]), [x * 2])
    s.fill_(3.0)
    assert_same(fd.execute([x, s]), [x * 3])
    assert len(cold_calls) == 1


# ---------------------------------------------------------------- options and devices
def test_settings_of_a_block_are_part_of_the_signature(cold_calls: list[Any]) -> None:
    fd = relu()
    fd.execute([X])
    with options(chip="A100"):
        fd.execute([X])
        fd.execute([X])
    fd.execute([X])
    assert len(cold_calls) == 2
    assert [r.engine.key[1] for r in executor(fd).kernel_runtimes] == ["H100", "A100"]  # type: ignore[index]


def test_options_of_a_call_do_not_leak() -> None:
    fd = relu()
    fd.execute([X], _disable_options=["fma"], _enable_options=["id_model_extra_validation"])
    assert len(executor(fd)._caller._prepared) == 0
    fd.execute([X])
    fd.execute([X], _disable_options=["fma"])
    assert len(executor(fd).kernel_runtimes) == 2


def test_nested_inputs_are_flattened(cold_calls: list[Any]) -> None:
    fd, x, y = add(), torch.randn(2, 3), torch.randn(2, 3)
    for values in ([x, y], [[x, y]], [(x,), [y]]):
        assert_same(fd.execute(values), [x + y])
    assert len(executor(fd)._caller._prepared) == 1


def test_the_device_is_part_of_the_signature(cold_calls: list[Any]) -> None:
    fd = define(lambda fd: fd.add_output(fd.ops.full([3], 1.0, DataType.Float)))
    for device in (None, "cpu", None, "cpu"):
        assert fd.fec.execute([], device=device)[0].is_cpu if "fec" in fd.__dict__ else fd.execute([])[0].is_cpu
    assert len(cold_calls) == 2


# ---------------------------------------------------------------- the launch
def test_a_launch_gets_the_addresses_of_inputs_and_outputs_and_the_changed_scalars() -> None:
    fd, x = scaled(), torch.randn(5)
    fd.execute([x, 1.5, 2])
    launches = record_launches(executor(fd))
    (out,) = fd.execute([x, 4, 3])  # another signature is prepared, and launched for real
    (out,) = fd.execute([x, 2.5, 3])
    ((pointers, stream, scalars),) = launches
    assert pointers == (x.data_ptr(), out.data_ptr()) and stream == 0
    assert sorted(value for _, value in scalars) == [2.5, 12]


def test_outputs_are_new_at_every_call() -> None:
    fd = relu()
    first, second = fd.execute([X]), fd.execute([X])
    assert first[0].data_ptr() != second[0].data_ptr()


def test_the_table_starts_over_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.runtime.calls.LARGEST_TABLE", 3)
    fd = relu(1)
    for n in range(1, 9):
        x = torch.randn(n)
        assert_same(fd.execute([x]), [x.relu()])
    assert len(executor(fd)._caller._table) <= 3


def test_a_warm_call_costs_few_instructions() -> None:
    """The aim is 4 us without the driver (tests/runtime/warm_path_cost.py measures)."""
    fd = relu()
    fd.execute([X])
    record_launches(executor(fd))
    for prepared in executor(fd)._caller._prepared.values():
        prepared.run.__globals__["launch0"] = lambda *arguments: None
    execute, values = executor(fd).execute, [X]
    execute(values)
    assert instructions_of(lambda: execute(values)) < 150


def test_nothing_of_a_call_is_kept_alive() -> None:
    import gc
    import weakref

    fd, x, y = add(), torch.randn(4, 8), torch.randn(4, 8)
    out = fd.execute([x, y])[0]
    alive = [weakref.ref(t) for t in (x, y, out)]
    del x, y, out
    gc.collect()
    assert [ref() for ref in alive] == [None] * 3


def test_threads_share_the_tables() -> None:
    import threading

    fd, wrong = relu(), []
    fd.execute([X])

    def work(seed: int) -> None:
        for n in range(60):
            x = torch.full((4, 8 + (n + seed) % 5), float(seed + 1))
            if fd.execute([x])[0].tolist() != x.tolist():
                wrong.append((seed, n))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("make", [iter, lambda values: (v for v in values), lambda values: map(abs, values), set], ids=["iter", "generator", "map", "set"])
def test_inputs_are_a_list_or_a_tuple_on_every_call(make: Callable[[list[torch.Tensor]], Any]) -> None:
    """An iterator can be read only once, and a set has no order; a warm call says so, too."""
    x = torch.randn(3, 5)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.define_tensor(shape=[-1, -1], contiguity=True)))
    for _ in range(3):
        with pytest.raises(TypeError, match="Expected a list or tuple of inputs, but got a"):
            fd.execute(make([x]))
        with pytest.raises(TypeError, match="Expected a list or tuple of inputs, but got a"):
            fd.execute(make([x]), save_repro_inputs=False, device=None)
        assert torch.equal(fd.execute([x])[0], fd.execute((x,))[0])
    with pytest.raises(RuntimeError, match="Expected 1 inputs"):
        fd.execute([])
