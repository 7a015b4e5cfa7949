"""Schedulers under nvFuser's names: who takes what, what a schedule made in place computes, what profiles call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft import DataType, FusionDefinition, PythonProfiler, SchedulerType

S = SchedulerType
X = torch.arange(64.0 * 128).reshape(64, 128).sin()
Build = Callable[[FusionDefinition, Any], Any]


def softmax(fd: FusionDefinition, x: Any) -> Any:
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], True)))
    return fd.ops.truediv(e, fd.ops.sum(e, [1], True))


TAKEN: dict[str, tuple[Build, list[SchedulerType], str | None]] = {
    "arithmetic": (lambda fd, x: fd.ops.relu(x), [S.pointwise], "pointwise"),
    "a sum": (lambda fd, x: fd.ops.sum(x, [1]), [S.reduction], "reduction"),
    "a softmax": (softmax, [S.inner_persistent], "inner_persistent"),
    "a transpose": (lambda fd, x: fd.ops.relu(fd.ops.permute(x, [1, 0])), [S.transpose, S.pointwise], "transpose"),
    "a slice": (lambda fd, x: fd.ops.relu(fd.ops.slice(x, [0, 4], [64, 100])), [S.resize, S.pointwise], "resize"),
    "a pad": (lambda fd, x: fd.ops.pad(x, [1, 2]), [S.resize, S.pointwise], "resize"),
    "a cat": (lambda fd, x: fd.ops.cat([x, fd.ops.neg(x)], 1), [S.resize, S.pointwise], "resize"),
    "a reshape": (lambda fd, x: fd.ops.relu(fd.ops.reshape(x, [64, 2, 64])), [S.pointwise], "pointwise"),
    "a product": (lambda fd, x: fd.ops.matmul(x, fd.ops.permute(x, [1, 0])), [], None),
    "a sort": (lambda fd, x: fd.ops.argsort(x, 1), [S.expr_eval], "expr_eval"),
    "a view": (lambda fd, x: fd.ops.permute(x, [1, 0]), [S.expr_eval, S.transpose, S.pointwise], "expr_eval"),
    "an input": (lambda fd, x: x, [S.no_op], "no_op"),
    "nothing": (lambda fd, x: fd.ops.exp(fd.ops.full([0, 4], 1.0, DataType.Float)), [S.no_op, S.pointwise], "no_op"),
}


def defined(build: Build, shape: tuple[int, ...] = (-1, -1)) -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(build(fd, fd.define_tensor(list(shape), contiguity=True)))
    return fd


@pytest.mark.parametrize("name", TAKEN)
def test_who_takes_a_definition_and_what_its_profile_says(name: str) -> None:
    build, takers, profiled = TAKEN[name]
    fd = defined(build)
    assert fd.sched.find_compatible_schedulers(fd.fusion, [X]) == takers
    for kind in (S.pointwise, S.resize, S.no_op, S.expr_eval):
        is_taken, reason = fd.sched.can_schedule(fd.fusion, kind, [X])
        assert is_taken == (kind in takers) and (reason == "" or reason.startswith(f"Scheduler _{kind.name}_ ***rejected*** because : "))
    if profiled is not None:
        with PythonProfiler() as profiler:
            fd.execute([X])
        assert [kernel.scheduler for kernel in profiler.profile.kernel_profiles] == [profiled] and profiler.profile.segments == 1



IN_PLACE: dict[str, tuple[Build, SchedulerType, torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]] = {
    "a slice": (TAKEN["a slice"][0], S.resize, X, lambda x: x[:, 4:100].relu()),
    "a cat": (TAKEN["a cat"][0], S.resize, X, lambda x: torch.cat([x, -x], 1)),
    "a variance": (lambda fd, x: fd.ops.var(x, [1]), S.reduction, X, lambda x: x.var(1)),
    "a sum of exponentials": (
        lambda fd, x: fd.ops.log(fd.ops.sum(fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], True))), [1])), S.reduction, X,
        lambda x: (x - x.amax(1, True)).exp().sum(1).log(),
    ),
    "rows in clusters": (softmax, S.inner_persistent, torch.linspace(-3, 3, 40000).repeat(2, 1), lambda x: x.softmax(1)),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_schedule_made_in_place_computes(name: str) -> None:
    """With the params or without them; a variance and exponentials are rewritten before, a cluster is more than the loops say."""
    build, kind, x, reference = IN_PLACE[name]
    for gives_params in (True, False):
        fd = defined(build, tuple(x.shape))
        params = fd.sched.schedule(fd.fusion, kind, [x])
        assert params.scheduler_type is kind
        (out,) = fd.manual_execute([x], params) if gives_params else fd.manual_execute([x])
        torch.testing.assert_close(out.double(), reference(x.double()), atol=1e-5, rtol=1e-4)


ODD: dict[str, tuple[SchedulerType, Build, Callable[[torch.Tensor], torch.Tensor], tuple[int, int], tuple[int, int]]] = {
    "rows of a sum": (S.reduction, lambda fd, x: fd.ops.sum(x, [1]), lambda x: x.sum(1), (5, 1001), (7, 1003)),
    "a sum of all": (S.reduction, lambda fd, x: fd.ops.sum(x, [0, 1]), lambda x: x.sum(), (5, 17), (9, 23)),
    "columns of a sum": (S.reduction, lambda fd, x: fd.ops.sum(x, [0]), lambda x: x.sum(0), (129, 17), (65, 31)),
    "rows of a softmax": (S.inner_persistent, softmax, lambda x: x.softmax(1), (5, 1001), (3, 999)),
    "arithmetic": (S.pointwise, lambda fd, x: fd.ops.neg(x), lambda x: -x, (5, 17), (9, 33)),
    "a transpose of short rows": (S.transpose, lambda fd, x: fd.ops.neg(fd.ops.permute(x, [1, 0])), lambda x: -x.t(), (128, 8), (132, 8)),
}


@pytest.mark.parametrize("name", ODD)
def test_a_schedule_made_in_place_computes_rows_of_any_length(name: str) -> None:
    """Also of another length than that for which the params were chosen."""
    kind, build, wanted, shape, other = ODD[name]
    fd = defined(build)
    x, y = torch.randn(shape), torch.randn(other)
    params = fd.sched.compute_heuristics(fd.fusion, kind, [x])
    fd.sched.schedule(fd.fusion, kind, params)
    assert "__global__" in fd.fusion.print_kernel()
    for given in (x, y):
        torch.testing.assert_close(fd.manual_execute([given])[0], wanted(given))


@pytest.mark.parametrize("changed", [{"bdimy": 4}, {"bdimz": 4}, {"bdimy": 2, "bdimz": 2}])
def test_threads_that_changed_params_ask_for_and_a_schedule_has_no_use_for(changed: dict[str, int]) -> None:
    x = torch.randint(-4, 5, (3, 17)).float()
    fd = defined(lambda fd, x: fd.ops.sum(x, [0, 1]))
    params = fd.sched.compute_heuristics(fd.fusion, S.reduction, [x])
    for name, value in changed.items():
        setattr(params, name, value)
    fd.sched.schedule(fd.fusion, S.reduction, params)
    assert torch.equal(fd.manual_execute([x], params)[0], x.sum())


def test_what_cannot_be_scheduled_in_place_says_so() -> None:
    for name, kind, shape, reason in (("a reshape", S.pointwise, (64, 128), "execute rewrites a reshape"), ("a cat", S.resize, (-1, -1), "static sizes only")):
        fd = defined(TAKEN[name][0], shape)
        with pytest.raises(RuntimeError, match=reason):
            fd.sched.schedule(fd.fusion, kind, [X])


def test_what_needs_no_kernel_is_scheduled_and_refused_by_the_kernel_executor() -> None:
    fd = defined(TAKEN["a sort"][0])
    params = fd.sched.schedule(fd.fusion, S.expr_eval, [X])
    assert params.scheduler_type is S.expr_eval
    with pytest.raises(RuntimeError, match="KernelExecutor does not support the Fusion provided.*argsort"):
        fd.manual_execute([X], params)


def test_a_definition_without_kernels_is_compiled() -> None:
    fd = defined(TAKEN["a view"][0])
    fd.execute([X])
    assert fd.fec.is_compiled([X]) and fd.fec.get_cuda_kernel([X]) == ""
