"""What schedulers propose to tuning: the choice first, each once, and every one of them computes the right thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.options import options
from weft.runtime import tuned, tuning
from weft.runtime.runtimes import forget_kernels


@dataclass(frozen=True)
class Case:
    """define(fd, x) -> outputs; torch(x) the same in float64. ways: names of ways that must be among what is proposed."""

    define: Callable[[FusionDefinition, Any], list[Any]]
    torch: Callable[[torch.Tensor], list[torch.Tensor]]
    sizes: tuple[int, ...]
    ways: frozenset[str]
    dtype: DataType = DataType.Float


def _softmax(fd: FusionDefinition, x: Any) -> list[Any]:
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], True)))
    return [fd.ops.mul(e, fd.ops.reciprocal(fd.ops.sum(e, [1], True)))]


def _both_sides(fd: FusionDefinition, x: Any) -> list[Any]:
    y = fd.ops.mul(x, fd.ops.sum(x, [1], True))
    return [y, fd.ops.sum(y, [0])]


CASES = {
    "pointwise": Case(lambda fd, x: [fd.ops.mul(fd.ops.add(x, 1.0), x)], lambda x: [(x + 1) * x], (37, 1032), frozenset({"break 0"})),
    "rows": Case(lambda fd, x: [fd.ops.sum(x, [1])], lambda x: [x.sum(1)], (19, 2056), frozenset({"inner, one block", "inner, several blocks"})),
    "columns": Case(lambda fd, x: [fd.ops.sum(x, [0])], lambda x: [x.sum(0)], (523, 264), frozenset({"outer, one block", "outer, several blocks"})),
    "softmax": Case(_softmax, lambda x: [x.softmax(1)], (9, 4104), frozenset({"register, one block", "shared, one block", "reread, one block", "tma"})),
    "softmax of odd rows": Case(_softmax, lambda x: [x.softmax(1)], (7, 1999), frozenset({"register, one block"})),
    "transpose": Case(lambda fd, x: [fd.ops.stride_order(fd.ops.permute(x, [1, 0]), [1, 0])], lambda x: [x.t()], (136, 200), frozenset({"tiles of 64", "tiles of 32", "break 0"})),
    "both sides": Case(
        _both_sides, lambda x: [x * x.sum(1, keepdim=True), (x * x.sum(1, keepdim=True)).sum(0)], (40, 1032), frozenset({"now", "ahead", "cp_async", "tma"})
    ),
    "running sums": Case(lambda fd, x: [fd.ops.cumsum(x, 1)], lambda x: [x.cumsum(1)], (11, 1160), frozenset({"rows"})),
    "columns used again": Case(
        lambda fd, x: [fd.ops.sub(x, fd.ops.mean(x, [0], True))], lambda x: [x - x.mean(0, keepdim=True)], (70, 136), frozenset({"reread"})
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def empty_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of its own; two candidates of a way."""
    forget_kernels()
    tuned.forget()
    monkeypatch.setattr(tuning, "OF_A_WAY", 2)
    with options(cache_dir=str(tmp_path / "cache")):
        yield
    tuned.forget()
    forget_kernels()


@pytest.mark.parametrize("name", CASES)
def test_every_candidate_computes_the_right_thing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, results, proposed = CASES[name], [], []
    write_run, proposals = tuning.write_run, tuning._Tuner.proposals

    def recorded(parts: Any) -> Callable[..., None]:
        run = write_run(parts)
        return lambda *arguments: results.append(run(*arguments))

    def noted(self: Any) -> Any:
        found = proposals(self)
        proposed.extend(found)
        return found

    monkeypatch.setattr(tuning, "write_run", recorded)
    monkeypatch.setattr(tuning._Tuner, "proposals", noted)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * len(case.sizes), contiguity=True, dtype=case.dtype)
        for output in case.define(fd, x):
            fd.add_output(output)
    value = torch.randn(case.sizes, generator=torch.Generator().manual_seed(5))
    with tuning.session(tuning.Session(1e9, measure=lambda launch, device, count: float(launch() is None))) as session:
        fd.execute([value], tune=True, check="races")
    (found,) = session.results
    assert case.ways <= {p.way for p in proposed} and found.timed == found.candidates, "some candidates could not be made"
    assert len(set(proposed)) == len(proposed) > 2
    wanted = case.torch(value.double())
    assert len(results) >= len(proposed)
    for outputs in results:
        for got, want in zip(outputs, wanted):
            assert got.shape == want.shape and float((got.double() - want).abs().max() / want.abs().max()) < 256 * 2.0**-23
