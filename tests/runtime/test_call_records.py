"""Calls from records on disk: the same results without a definition, and a definition wherever a record does not fit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from weft import FusionDefinition
from weft.cache import default_cache
from weft.cache.entry import Artefact
from weft.options import options
from weft.runtime import call_records
from weft.runtime.call_records import RecordedCalls, code_version
from weft.runtime.outputs import Layout
from weft.runtime.record_text import NoRecord, decoded, encoded


@pytest.fixture(autouse=True)
def folder(tmp_path: Path):
    call_records._code_version.cache_clear()
    with options(cache_dir=str(tmp_path / "cache"), check="races"):
        yield tmp_path / "cache"
    call_records._code_version.cache_clear()


def softmax(fd: FusionDefinition) -> None:
    x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
    scale = fd.define_scalar(2.5)
    y = fd.ops.exp(fd.ops.mul(x, scale))
    total = fd.ops.sum(y, dims=[1], keepdim=True)
    fd.add_output(fd.ops.div(y, total))


def two_kernels(fd: FusionDefinition) -> None:
    x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
    fd.add_output(fd.ops.sum(fd.ops.sin(x), dims=[0]))
    fd.add_output(fd.ops.sum(fd.ops.cos(x), dims=[1]))
    fd.add_output(fd.ops.add(x, 1.0))


def with_an_op_of_torch(fd: FusionDefinition) -> None:
    x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
    fd.add_output(fd.ops.mul(x, 3.0))
    fd.add_output(fd.ops.argsort(fd.ops.add(x, 1.0), 1))


def noise(fd: FusionDefinition) -> None:
    x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
    zero, one = fd.define_scalar(0.0), fd.define_scalar(1.0)
    fd.add_output(fd.ops.add(fd.ops.uniform(zero, one, shape=x.shape()), x))


def scaled(fd: FusionDefinition) -> None:
    x, scale = fd.define_tensor(shape=[-1, -1], contiguity=[True, True]), fd.define_scalar()
    fd.add_output(fd.ops.mul(x, scale))


DEFINITIONS: dict[str, tuple[Callable[[FusionDefinition], None], tuple[Any, ...]]] = {
    "softmax": (softmax, ()), "several kernels": (two_kernels, ()), "an op of torch's": (with_an_op_of_torch, ()), "random numbers": (noise, ()),
    "a number": (scaled, (1.75,)),
}  # fmt: skip


def maker(define: Callable[[FusionDefinition], None]) -> Callable[[], Any]:
    def make() -> Any:
        with FusionDefinition() as fd:
            define(fd)
        return fd._executor_cache()

    return make


def nobody() -> Any:
    raise AssertionError("a record should have served this call")


def equal(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> None:
    for x, y in zip(a, b, strict=True):
        assert x.dtype is y.dtype and x.stride() == y.stride() and torch.equal(x, y)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_record_gives_the_same_bits_without_the_definition(name: str) -> None:
    define, numbers = DEFINITIONS[name]
    first = RecordedCalls("d", maker(define))
    inputs = [[torch.randn(sizes), *numbers] for sizes in ((5, 8), (7, 12), (1, 8))]
    torch.manual_seed(1)
    want = [first.execute(values) for values in inputs]
    assert first.executor is not None
    second = RecordedCalls("d", nobody)
    for _ in range(2):  # cold, then warm
        torch.manual_seed(1)
        for values, results in zip(inputs, want):
            equal(second.execute(values), results)
    assert second.executor is None and {k.program.name for k in second.kernels} == {k.program.name for k in first.kernels}


def test_a_number_of_another_value_is_no_other_call() -> None:
    RecordedCalls("d", maker(scaled)).execute([torch.ones(4, 4), 2.0])
    calls = RecordedCalls("d", nobody)
    assert float(calls.execute([torch.ones(4, 4), 2.0])[0].sum()) == 32 and float(calls.execute([torch.ones(4, 4), -0.5])[0].sum()) == -8


UNLIKE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sizes": lambda x: x[:3], "alignment": lambda x: torch.empty(41)[1:].view(5, 8).copy_(x),
}  # fmt: skip


def test_a_parameter_is_served_by_the_record_that_was_read_for_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are prepared with tensors, and the weights of a model are parameters: the table tells them apart, and the kernels are the same."""
    x, read = torch.randn(3, 5), list[object]()
    (want,) = RecordedCalls("digest", maker(softmax)).execute([x])
    plain = call_records._read
    monkeypatch.setattr(call_records, "_read", lambda found: (read.append(found), plain(found))[1])
    again = RecordedCalls("digest", nobody)
    again.prepare([x])
    with torch.no_grad():
        (got,) = again.execute([torch.nn.Parameter(x)])
    assert torch.equal(got, want) and len(read) == len(again.kernels) == 1


def test_a_scatter_has_no_record() -> None:
    """Torch's setting of equal bits decides how it is computed, and can change between processes."""

    def define(fd: FusionDefinition) -> None:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
        fd.add_output(fd.ops.scatter(x, fd.ops.full([2, 3], fd.define_scalar(0), torch.int64), 1.5, 0))

    for _ in range(2):
        calls = RecordedCalls("d", maker(define))
        x = torch.randn(5, 8)
        assert torch.equal(calls.execute([x])[0], x.scatter(0, torch.zeros(2, 3, dtype=torch.int64), 1.5))
        assert calls.executor is not None


def running_sum(fd: FusionDefinition) -> None:
    total, x = (fd.define_tensor(shape=[-1, -1], contiguity=[True, True]) for _ in range(2))
    added = fd.ops.add(total, fd.ops.mul(x, 2.0))
    fd.add_output(added, total)
    fd.add_output(fd.ops.sum(added, dims=[1]))


def test_a_call_that_writes_into_an_input_has_a_record() -> None:
    """With the function for inputs that lie across each other; versions rise, and a leaf with gradients is refused as ever."""
    for make in (maker(running_sum), nobody):
        calls = RecordedCalls("d", make)
        memory = torch.arange(130.0)
        for _ in range(3):
            total, x = torch.ones(5, 8), torch.randn(5, 8)
            (sums,) = calls.execute([total, x])
            want = 1 + 2 * x.double()
            torch.testing.assert_close(total.double(), want, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(sums.double(), want.sum(1), rtol=1e-5, atol=1e-5)
            assert total._version == 1
            before = memory.double()
            calls.execute([memory[4:44].view(5, 8), memory[:40].view(5, 8)])
            torch.testing.assert_close(memory[4:44].double(), before[4:44] + 2 * before[:40], rtol=1e-6, atol=0)
        assert (calls.executor is None) == (make is nobody)
    with pytest.raises(Exception, match="W139"):
        RecordedCalls("d", maker(running_sum)).execute([torch.nn.Parameter(torch.ones(5, 8)), torch.ones(5, 8)])


@pytest.mark.parametrize("what", UNLIKE)
def test_what_has_no_record_goes_to_the_definition(what: str) -> None:
    x = torch.randn(5, 8)
    RecordedCalls("d", maker(softmax)).execute([x])
    calls = RecordedCalls("d", maker(softmax))
    other = UNLIKE[what](x)
    torch.testing.assert_close(calls.execute([other])[0].detach(), torch.softmax(other.detach() * 2.5, -1))
    assert calls.executor is not None
    equal(calls.execute([x]), RecordedCalls("e", maker(softmax)).execute([x]))


def test_tensors_that_no_kernel_reads_are_refused_as_ever() -> None:
    x = torch.randn(5, 8)
    RecordedCalls("d", maker(softmax)).execute([x])
    with pytest.raises(Exception, match="W778"):
        RecordedCalls("d", maker(softmax)).execute([torch._neg_view(x)])
    with pytest.warns(UserWarning, match="W138"):
        RecordedCalls("d", maker(softmax)).execute([x.clone().requires_grad_()])


def test_other_settings_chips_and_definitions_have_records_of_their_own() -> None:
    x = torch.randn(5, 8)
    RecordedCalls("d", maker(softmax)).execute([x])
    for definition, changed in (("other", {}), ("d", {"chip": "B200"}), ("d", {"fast_math": True}), ("d", {"check": ""})):
        with options(**changed):
            calls = RecordedCalls(definition, maker(softmax))
            calls.execute([x])
            assert calls.executor is not None


def test_without_a_cache_or_a_digest_nothing_is_recorded(folder: Path) -> None:
    x = torch.randn(5, 8)
    with options(cache=False):
        RecordedCalls("d", maker(softmax)).execute([x])
    RecordedCalls("", maker(softmax)).execute([x])
    calls = RecordedCalls("d", maker(softmax))
    calls.execute([x])
    assert calls.executor is not None


def test_values_come_back_as_they_were() -> None:
    value = (1, True, None, -0.0, 0.1, float("inf"), [2, (), ["a"]], {"k": (3,), 4: {}}, complex(0.1, -0.0), torch.bfloat16, "a\n\u00e9")
    found = decoded(json.loads(json.dumps(encoded(value, {}), allow_nan=False)), {})
    assert repr(found) == repr(value)  # which tells True from 1, and -0.0 from 0.0
    layout = Layout((2, 3), (3, 1), torch.float16)
    assert decoded(encoded((layout, [layout]), {"Layout": Layout}), {"Layout": Layout}) == (layout, [layout])
    assert math.isnan(decoded(encoded(math.nan, {}), {}))


@pytest.mark.parametrize("value", [object(), torch.ones(2), b"", {1}, len, torch.device("cpu"), Layout((2,), (1,), torch.int8), (1, [print]), type("Own", (int,), {})(3)])
def test_what_is_no_data_is_not_written(value: object) -> None:
    with pytest.raises(NoRecord):
        encoded(value, {})


@pytest.mark.parametrize("damage", ["", 7, None, {}, [], {"_Record": []}, {"system": ["true"]}, {"Layout": [1]}, {"dtype": "ones"}, {"dtype": 3}, {"float": "x"}, {"dict": [1]}, {"a": 1, "b": 2}])
def test_a_record_that_is_none_is_not_believed(damage: object) -> None:
    """The cache finds damage; a right checksum over something else is a miss, and runs nothing."""
    x = torch.randn(5, 8)
    want = RecordedCalls("d", maker(softmax)).execute([x])
    cache = default_cache()
    assert cache is not None
    for key in cache.keys():
        artefact = cache.get(key)
        if artefact is not None and call_records.RECORD in artefact.metadata:
            cache.put(key, Artefact({"kind": "call", call_records.RECORD: damage}))
    calls = RecordedCalls("d", maker(softmax))
    equal(calls.execute([x]), want)
    assert calls.executor is not None


def test_checks_of_one_call_and_small_storages_are_the_definitions() -> None:
    x = torch.randn(5, 8)
    want = RecordedCalls("d", maker(softmax)).execute([x])
    calls = RecordedCalls("d", maker(softmax))
    equal(calls.execute([x]), want)
    x.untyped_storage().resize_(8)
    with pytest.raises(Exception, match="W785"):
        calls.execute([x])


def test_each_process_writes_few_records_of_one_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_records, "MOST_SIGNATURES", 2)
    first = RecordedCalls("d", maker(softmax))
    for rows in (2, 3, 4, 5):
        first.execute([torch.randn(rows, 8)])
    assert first._written == 2


def test_the_version_follows_the_files(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = code_version()
    call_records._code_version.cache_clear()
    assert code_version() == known  # by names, sizes and times
    found = list(call_records.files_below(str(Path(call_records.__file__).parents[1]), (".py", ".cuh")))
    call_records._code_version.cache_clear()
    (tmp_path / "a.py").write_text("1")
    monkeypatch.setattr(call_records, "files_below", lambda root, suffixes: [(str(tmp_path / "a.py"), 1, 1), *found[:3]])
    assert code_version() != known
