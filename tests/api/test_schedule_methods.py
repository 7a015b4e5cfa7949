"""Scheduling by hand through the API: methods of TensorView, fd.sched, IR queries, idm, schedulers by name."""

import copy

import pytest
import torch

from weft import BroadcastOp, DataType, FusionDefinition, IdMappingMode, IterDomain, LoadStoreOpType, MemoryType, Merge, ParallelType
from weft import PointwiseParams, SchedulerType, Split, SqueezeOp, TensorView, UserError


@pytest.fixture
def fd():
    with FusionDefinition() as definition:
        yield definition


def extents(tensor):
    return [str(axis.sym) for axis in tensor.get_loop_domain()]


def test_split_merge_reorder(fd):
    t = fd.ops.relu(fd.define_tensor([8, 12], contiguity=True))
    t.split(1, 4)
    assert extents(t) == ["8", "3", "4"] and isinstance(t.axis(2).definition(), Split)
    t.outer_split(0, 2)
    t.inner_split(0, 1)
    assert extents(t) == ["2", "1", "4", "3", "4"]
    t.merge(2, 3)
    assert extents(t) == ["2", "1", "12", "4"] and isinstance(t.axis(2).definition(), Merge)
    t.reorder({0: -1})
    assert extents(t) == ["1", "12", "4", "2"]
    t.reorder()
    t.split(-1, 2, inner_split=False)
    assert extents(t) == ["1", "12", "4", "2", "1"]
    merge = t.axis(1).definition()
    assert merge.inner().definition().outer() is merge.inner() and str(merge.out().extent().sym) == "12"


def test_parallelize_memory_type_and_allocation_domain(fd):
    t = fd.ops.relu(fd.define_tensor([8, 12], contiguity=True))
    t.axis(0).parallelize(ParallelType.block_x)
    assert t.axis(0).parallel is ParallelType.block_x
    t.set_memory_type(MemoryType.shared)
    assert t.memory_type is MemoryType.shared
    t.set_allocation_domain([t.axis(1), t.axis(0)], True)
    assert t.get_allocation_domain() == [t.axis(1), t.axis(0)]


def test_caches_and_rfactor(fd):
    x = fd.define_tensor([-1, 64], contiguity=True)
    y = fd.ops.sum(x, [1])
    fd.add_output(y)
    cached, before = x.cache_after(), y.cache_before()
    assert all(isinstance(t, TensorView) for t in (cached, before)) and cached.definition().input(0) is x and y.definition().input(0) is before
    before.split(1, 8)
    partial = before.rfactor([1])
    assert partial is not before and before.definition().input(0) is partial


def test_a_cache_of_some_uses_in_an_order_of_its_own(fd):
    x = fd.define_tensor([4, 8], contiguity=True, stride_order=[0, 1])
    a, b = fd.ops.relu(x), fd.ops.exp(x)
    copy = x.cache_after(cached_uses=[b.definition()], propagate_allocation_domain=False)
    assert a.definition().input(0) is x and b.definition().input(0) is copy and copy.domain().allocation is None
    with pytest.raises(RuntimeError, match="does not read it"):
        x.cache_after(LoadStoreOpType.set, cached_uses=[b.definition()])


def test_a_reduction_cut_in_two_is_validated_as_one():
    """The reference folds the partial result over all that both parts fold."""
    x = torch.randn(33, 300)
    for named in ([1], [2]):
        with FusionDefinition() as fd:
            y = fd.ops.sum(fd.from_pytorch(x, static_sizes=True), [1])
            fd.add_output(y)
            y.split(1, 64)
            partial = y.rfactor(named)
            y.axis(0).parallelize(ParallelType.grid_x)
            fd.sched.parallelize_like(y, selected_tensors=[partial])
        torch.testing.assert_close(fd.manual_validate([x])[0], x.sum(1), atol=1e-4, rtol=1e-4)


def threads_over_parts_of_rows(fd, x, first):
    first.split(-1, 32)
    first.axis(-1).parallelize(ParallelType.block_x)
    first.axis(0).parallelize(ParallelType.grid_x)
    fd.sched.transform_like(first)
    fd.sched.parallelize_like(first)
    fd.sched.inline_most()


def threads_over_rows_that_are_kept(fd, x, first):
    x.cache_after()
    first.axis(-1).parallelize(ParallelType.block_x)
    fd.sched.parallelize_like(first)
    fd.sched.inline_most()


@pytest.mark.parametrize("static_sizes", [False, True])
@pytest.mark.parametrize("schedule", [threads_over_parts_of_rows, threads_over_rows_that_are_kept, lambda fd, x, first: fd.sched.inline_most()])
def test_layer_norm_of_a_variance_scheduled_by_hand(schedule, static_sizes):
    """Mean and variance are one reduction in the loops of the schedule."""
    x = torch.randn(7, 96) * 2 + 1
    with FusionDefinition() as fd:
        a = fd.from_pytorch(x, static_sizes=static_sizes)
        variance, mean = fd.ops.var_mean(a, [1], 0, True)
        inverse = fd.ops.broadcast_in_dim(fd.ops.rsqrt(fd.ops.add(variance, 1e-5)), a.shape(), [0, 1])
        fd.add_output(fd.ops.mul(fd.ops.sub(a, fd.ops.broadcast_in_dim(mean, a.shape(), [0, 1])), inverse))
        first = next(t for t in fd.fusion.vals() if isinstance(t, TensorView) and any(axis.is_reduction() for axis in t.get_logical_domain()))
        schedule(fd, a, first)
    torch.testing.assert_close(fd.manual_validate([x])[0], torch.nn.functional.layer_norm(x, [96]), atol=1e-5, rtol=1e-5)


def test_an_axis_is_bound_to_a_parallel_type_only(fd):
    with pytest.raises(TypeError, match="W306.*'x', which is not a ParallelType"):
        fd.define_tensor([2, 3]).axis(0).parallelize("x")


def test_propagation_and_inlining(fd):
    x = fd.define_tensor([-1, 64], contiguity=True)
    y = fd.ops.relu(x)
    z = fd.ops.exp(y)
    fd.add_output(z)
    z.split(1, 4)
    fd.sched.transform_like(z)
    assert extents(y) == extents(z)
    z.axis(0).parallelize(ParallelType.grid_x)
    fd.sched.parallelize_like(z)
    assert y.axis(0).parallel is ParallelType.grid_x
    fd.sched.inline_most()
    assert y.compute_at == 3


def test_bounded_transform_and_inline_at(fd):
    x = fd.define_tensor([8, 64], contiguity=True)
    y = fd.ops.relu(x)
    z = fd.ops.exp(y)
    fd.add_output(z)
    z.split(1, 4)
    fd.sched.bounded_transform_backward(z, -1, [y])
    assert extents(y) == extents(z)
    fd.sched.inline_at(z, 1)
    assert y.compute_at == 1


def test_queries_of_tensors_axes_and_expressions(fd):
    x = fd.define_tensor([-1, 4, 1], contiguity=True)
    s = fd.ops.squeeze(x, [2])
    b = fd.ops.broadcast(s, [False, True, False])
    r = fd.ops.sum(b, [0])
    assert (x.ndim, r.ndim, x.dtype(), x.is_tensor()) == (3, 2, DataType.Float, True)
    assert type(b.definition()) is BroadcastOp and type(s.definition()) is SqueezeOp and x.definition() is None
    assert b.definition().input(0) is s and b.definition().output(0) is b and x.uses() == [s.definition()]
    assert isinstance(x.axis(-1), IterDomain) and r.axis(0).is_reduction() and not x.axis(0).is_reduction()
    assert not x.has_root() and x.get_root_domain() == [] and x.get_loop_domain() == x.get_logical_domain() and str(x.domain()) == "[iS0{i0}, iS1{4}, bS2{1}]"
    assert x.size(1).sym.value == 4 and x.size(0).is_symbolic() and not x.size(0).is_tensor() and len(x.shape()) == 3
    p = fd.ops.permute(x, [2, 0, 1])
    assert p.has_root() and len(p.get_root_domain()) == 3
    with pytest.raises(RuntimeError, match="there is no axis 3"):
        x.axis(3)
    with pytest.raises(TypeError):
        x + "x"


def test_idm_maps_axes(fd):
    from weft.api import idm

    x, w = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1], contiguity=True)
    b = fd.ops.broadcast(w, [True, False])
    y = fd.ops.add(x, b)
    fd.add_output(y)
    model = idm.IdModel(fd.fusion, build_graphs=True)
    exact, permissive = (model.maybe_build_graph(mode) for mode in (IdMappingMode.exact, IdMappingMode.permissive))
    sets = exact.disjoint_val_sets()
    assert sets.strict_are_mapped(x.axis(1), y.axis(1)) and not sets.strict_are_mapped(b.axis(0), y.axis(0))
    assert permissive.disjoint_val_sets().strict_are_mapped(b.axis(0), y.axis(0))
    assert not sets.strict_are_mapped(x.axis(0), x.axis(1))
    exact.map_vals(x.axis(0), x.axis(1))
    assert sets.strict_are_mapped(y.axis(0), y.axis(1))
    loops = model.maybe_build_graph(IdMappingMode.loop).disjoint_val_sets()
    assert not loops.strict_are_mapped(b.axis(0), y.axis(0))


def test_idm_maps_loops_that_inlining_shares(fd):
    from weft.api import idm

    x = fd.define_tensor([-1, -1], contiguity=True)
    a = fd.ops.exp(x)
    b = fd.ops.neg(a)
    fd.add_output(b)
    for tensor in (a, b):
        tensor.split(1, 4)
    fd.sched.inline_at(b, 2)
    loops = idm.IdModel(fd.fusion).maybe_build_graph(IdMappingMode.loop).disjoint_val_sets()
    assert [loops.strict_are_mapped(a.axis(n), b.axis(n)) for n in range(3)] == [True, True, False]
    assert not loops.strict_are_mapped(x.axis(0), a.axis(0))


# ---------------------------------------------------------------- schedulers by name
def pointwise():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.define_tensor([-1, -1], contiguity=True)))
    return fd


def test_exactly_one_scheduler_takes_a_pointwise_fusion():
    fd = pointwise()
    inputs = [torch.ones(64, 128)]
    assert fd.sched.find_compatible_schedulers(fd.fusion, inputs) == [SchedulerType.pointwise]
    assert fd.sched.can_schedule(fd.fusion, SchedulerType.pointwise, inputs) == (True, "")
    is_taken, reason = fd.sched.can_schedule(fd.fusion, SchedulerType.reduction, inputs)
    assert not is_taken and reason.startswith("Scheduler _reduction_ ***rejected*** because : ")


def test_schedule_applies_what_compute_heuristics_returns():
    fd = pointwise()
    inputs = [torch.ones(64, 128)]
    params = fd.sched.compute_heuristics(fd.fusion, SchedulerType.pointwise, inputs)
    assert params.scheduler_type is SchedulerType.pointwise and params == fd.sched.compute_heuristics(fd.fusion, SchedulerType.pointwise, inputs)
    used = fd.sched.schedule(fd.fusion, SchedulerType.pointwise, params)
    assert used is params and any(t.get_loop_domain() != t.get_logical_domain() for t in fd.fusion.tensors())
    other = pointwise()
    assert other.sched.schedule(other.fusion, SchedulerType.pointwise, inputs) == params
    with pytest.raises(RuntimeError, match="Scheduler _matmul_ .*rejected"):
        fd.sched.compute_heuristics(pointwise().fusion, SchedulerType.matmul, inputs)


def test_params_have_nvfusers_names_and_can_be_set():
    fd, x = pointwise(), torch.randn(64, 128)
    params = fd.sched.compute_heuristics(fd.fusion, SchedulerType.pointwise, [x])
    assert (params.vectorization_factor, params.unroll_factor_inner, params.break_point, params.split_grid_y_dim) == (4, 1, 0, False)
    params.vectorization_factor, params.unroll_factor_outer = 2, 3
    assert (params.params.vector_elems, params.unroll_outer) == (2, 3) and copy.deepcopy(params) == params
    assert params != fd.sched.compute_heuristics(fd.fusion, SchedulerType.pointwise, [x])
    fd.sched.schedule(fd.fusion, SchedulerType.pointwise, params)
    assert any(str(axis.extent()) == "2" for axis in fd.fusion.outputs()[0].get_loop_domain())
    assert torch.equal(fd.manual_execute([x], params)[0], x.relu())
    with pytest.raises(AttributeError, match="pointwise params have no nothing; they are PointwiseParams"):
        params.nothing  # noqa: B018
    for given, kind in ((PointwiseParams(), SchedulerType.pointwise), (params, SchedulerType.reduction)):
        with pytest.raises(RuntimeError, match="W193.*it takes the params that compute_heuristics returns"):
            fd.sched.schedule(pointwise().fusion, kind, given)


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("vector_elems", "x", "takes int"), ("vector_elems", 2.5, "takes int"), ("vector_elems", True, "takes int"), ("is_phased", 1, "takes bool"),
        ("access_bits", -1, r"takes one of \(128, 256\)"), ("bdimx", -1, "takes a number from 0 to 65536"), ("unroll_outer", 5000, "a number from 0 to 1024"),
        ("single_reads", None, "takes tuple"),
    ],
)  # fmt: skip
def test_a_value_that_a_field_of_params_cannot_have_is_refused(field, value, wanted):
    fd, x = pointwise(), torch.randn(64, 128)
    params = fd.sched.compute_heuristics(fd.fusion, SchedulerType.pointwise, [x])
    with pytest.raises(RuntimeError, match=f"W196: {field} of the pointwise params is set to {value!r}, and .*{wanted}"):
        setattr(params, field, value)
    assert not params.is_changed


def test_params_that_make_no_kernel_together_are_the_programs_mistake():
    """Tiles that a block moves whole have one thread count and one width; a phase is one of rows that begin anywhere."""
    x = torch.randn(64, 256)
    with FusionDefinition() as fd:
        turned = fd.ops.permute(fd.from_pytorch(x), [1, 0])
        fd.add_output(fd.ops.stride_order(turned, [1, 0]))
    params = fd.sched.compute_heuristics(fd.fusion, SchedulerType.transpose, [x])
    params.is_whole = True
    with pytest.raises(RuntimeError, match="W197: no kernel can be made of the changed params TransposeParams.*is_whole=True.*: "):
        fd.sched.schedule(fd.fusion, SchedulerType.transpose, params)


def test_print_kernel_shows_the_scheduled_kernel():
    fd = pointwise()
    fd.sched.schedule(fd.fusion, SchedulerType.pointwise, [torch.ones(64, 128)])
    text = fd.fusion.print_kernel()
    assert "__global__" in text and "T0" in text and "T1" in text
    assert "((nvfuser_index_t)blockIdx.x)" in text and "LL" in text and "long long" not in text.split("{", 1)[1]


def test_print_kernel_tells_roles_as_nvfuser_does():
    """Compute threads of 256 in a row get a row of 256 beside them, of which one thread loads."""
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([-1, -1], contiguity=[True, True]) for _ in range(2))
        out = fd.ops.add(a, b)
        fd.add_output(out)
        copies = [t.cache_after(LoadStoreOpType.tma) for t in (a, b)]
        for copy in copies:
            copy.set_memory_type(MemoryType.shared)
        out.split(-1, 256)
        fd.sched.transform_like(out)
        out.axis(0).parallelize(ParallelType.grid_x)
        fd.sched.parallelize_like(out)
        out.axis(-1).parallelize(ParallelType.block_x)
        for copy in copies:
            copy.axis(2).parallelize(ParallelType.tma)
        fd.sched.inline_most()
        for copy in copies:
            fd.sched.warp_specialize(copy, 2, 1, ParallelType.block_y)
    assert "if ((((nvfuser_index_t)threadIdx.y) >= 1LL)) {" in fd.fusion.print_kernel()
    x, y = torch.randn(3, 1000), torch.randn(3, 1000)
    torch.testing.assert_close(fd.manual_execute([x, y])[0], x + y)


@pytest.mark.parametrize(
    ("name", "remedy"), [("split", r"write tensor.split\(...\)"), ("parallelize", r"write tensor.axis\(n\).parallelize"), ("fuse", "it has .*inline_most.*transform_like")]
)
def test_what_fd_sched_does_not_have_is_named_where_it_is(name: str, remedy: str) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.define_tensor([4])))
        with pytest.raises(AttributeError, match=f"fd.sched has no '{name}': {remedy}"):
            getattr(fd.sched, name)
    assert not hasattr(fd.sched, "_no_such_name")


WRONG_SCHEDULES = {
    "split by a fraction": (lambda fd, z, other: z.split(0, 2.5), r"W304: split\(\): factor must be a whole number, not 2.5"),
    "split of a text": (lambda fd, z, other: z.split("0", 4), "W110: .* there is no axis '0' in"),
    "reorder to a list with repeats": (lambda fd, z, other: z.reorder([0, 0]), r"W615: cannot reorder .* by \[0, 0\]: a position is named twice"),
    "memory by name": (lambda fd, z, other: z.set_memory_type("shared"), "W304: .*memory_type must be a MemoryType, not 'shared'(.|\n)*MemoryType.shared"),
    "copy by name": (lambda fd, z, other: z.cache_before("tma"), "W304: .*op_type must be a LoadStoreOpType, not 'tma'(.|\n)*LoadStoreOpType.tma"),
    "transforms of nothing": (lambda fd, z, other: fd.sched.transform_like(None), r"W304: transform_like\(\): None is not a tensor of a definition"),
    "transforms for a number": (lambda fd, z, other: fd.sched.transform_like(z, [3]), r"W304: transform_like\(\): 3 is not a tensor"),
    "transforms for a foreign tensor": (lambda fd, z, other: fd.sched.transform_like(z, [other]), "W304: transform_like.* is of another definition"),
    "one tensor instead of a list": (lambda fd, z, other: fd.sched.inline_most(z), r"W304: inline_most.*is one tensor(.|\n)*inline_most\(\[tensor\]\)"),
}


@pytest.mark.parametrize("name", WRONG_SCHEDULES)
def test_a_wrong_schedule_is_refused_where_it_is_written(name: str) -> None:
    """Not when the kernel is made, and not passed over."""
    call, words = WRONG_SCHEDULES[name]
    with FusionDefinition() as other:
        foreign = other.ops.exp(other.define_tensor([-1, -1]))
        other.add_output(foreign)
    with FusionDefinition() as fd:
        z = fd.ops.exp(fd.define_tensor([-1, -1]))
        fd.add_output(z)
        with pytest.raises(UserError, match=words):
            call(fd, z, foreign)


def test_fd_sched_lists_its_functions_only(fd) -> None:
    assert dir(fd.sched) == [
        "bounded_transform_backward", "can_schedule", "compute_heuristics", "find_compatible_schedulers", "inline_at", "inline_most", "parallelize_like",
        "schedule", "transform_like", "warp_specialize",
    ]  # fmt: skip
