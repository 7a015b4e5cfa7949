"""Sums of rows that an index names, added atomically: gradients of embeddings and of rows taken by an index, messages along edges; and when a sort is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from half_of_pairs import half, name_of
from row_gradients import (
    INDICES, check, check_messages, gradient, has_sums_of_torch, kept_by_torch, messages, padded_table, pooled, pooled_over_samples, scattered_messages, table,
    taken, taken_twice, weighted_sums,
)  # fmt: skip
from torch import Tensor

from weft.frontend.backend import GRAPHS, backend
from weft.options import options

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def _atomic() -> Iterator[None]:
    with options(row_sums="atomic"):
        yield


def texts() -> list[str]:
    """The kernels of all graphs so far."""
    return [kernel.program.text for graph in GRAPHS for call in graph.calls for kernel in call.kernels()]


def is_sorted() -> bool:
    return any("sort" in name for name in kept_by_torch())


def run(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, options={"emulate": True, "debug": True, "strict": True})(*tensors)


@pytest.mark.parametrize(("name", "function"), half(INDICES, [table, padded_table, taken]), ids=name_of)
def test_indices(function: Callable[..., Tensor], name: str) -> None:
    check(function, torch.randn(37, 19), INDICES[name](37))
    assert not has_sums_of_torch() and not is_sorted()


@pytest.mark.parametrize(
    ("dtype", "sizes"), half([torch.float32, torch.float64, torch.bfloat16, torch.float16], [(37, 40), (1, 64), (300, 33), (5, 4, 16), (6,)]), ids=str
)
def test_types_and_sizes(dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    check(taken, torch.randn(sizes).to(dtype), torch.randint(0, sizes[0], (7, 40)))
    assert not has_sums_of_torch() and not is_sorted()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_whole_numbers(dtype: torch.dtype) -> None:
    """Their order is no matter, so that they are added atomically where equal bits are asked for, too."""
    values, i = torch.randint(-99, 99, (300, 5), dtype=dtype), torch.randint(0, 7, (300,))
    with options(deterministic=True):
        got = run(lambda values, i: torch.zeros(7, 5, dtype=dtype).index_add(0, i, values) + 1, values, i)
    assert torch.equal(got, torch.zeros(7, 5, dtype=dtype).index_add(0, i, values) + 1)
    assert not has_sums_of_torch() and not is_sorted()


@pytest.mark.parametrize(("sizes", "shape"), [((5, 9), (70,)), ((3, 9, 17), (4, 30)), ((2, 3, 9, 4), (1,)), ((2, 9, 4), (0,)), ((1, 9, 1), (70,))], ids=str)
def test_places_of_a_later_axis(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    axis = sizes.index(9)
    check(lambda x, i: x[(slice(None),) * axis + (i,)], torch.randn(sizes), torch.randint(-9, 9, shape))
    assert not has_sums_of_torch() and not is_sorted()


@pytest.mark.parametrize("shapes", [((8, 9), (8, 9)), ((8, 1), (1, 9)), ((9,), (8, 9))], ids=str)
def test_places_of_two_later_axes(shapes: tuple[tuple[int, ...], ...]) -> None:
    """Indices of one shape, and indices that are broadcast to each other."""
    check(lambda x, i, j: x[:, i, j], torch.randn(3, 7, 5, 6), torch.randint(0, 7, shapes[0]), torch.randint(0, 5, shapes[1]))
    assert not has_sums_of_torch() and not is_sorted()


def test_negative_places_and_two_indices() -> None:
    check(taken, torch.randn(20, 24), torch.randint(-20, 20, (90,)))
    check(taken_twice, torch.randn(5, 7, 24), torch.randint(-5, 5, (90,)), torch.randint(0, 7, (90,)))


@pytest.mark.parametrize("wrong", [30, 1 << 40])
def test_a_position_out_of_range_is_an_error_of_the_emulator(wrong: int) -> None:
    values, i = torch.randn(50, 8), torch.randint(0, 30, (50,))
    i[17] = wrong
    with pytest.raises(RuntimeError, match="position|out of range"):
        run(lambda values, i: torch.zeros(30, 8).index_add(0, i, values), values, i)


def test_places_that_are_padding_add_nothing() -> None:
    """Not even what is no number."""
    x, i = torch.randn(9, 16), torch.randint(0, 9, (3, 40))
    slope = torch.randn(3, 40, 16)
    slope[i == 3] = torch.nan
    got, _ = gradient(padded_table, x, i, slope=slope)
    assert (got[3] == 0).all() and got.isfinite().all() and (got[i[i != 3][0]] != 0).any()


@pytest.mark.parametrize(("shape", "function"), half([(5, 30), (1, 7), (30, 1), (40, 50), (70,)], [pooled, pooled_over_samples]), ids=name_of)
def test_sums_of_rows(function: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
    check(function, torch.randn(9, 19), torch.randint(0, 9, shape))
    assert not has_sums_of_torch() and not is_sorted()


@pytest.mark.parametrize(
    ("function", "dtype"), [(messages, torch.float32), (messages, torch.bfloat16), (scattered_messages, torch.float64)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)  # fmt: skip
@pytest.mark.parametrize(
    ("nodes", "edges", "row"), [(50, 90, (32,)), (7, 700, (37,)), (1, 5, (6, 6)), (30, 0, (32,)), (9, 1, (32, 1)), (11, 300, (3,))], ids=str
)
def test_messages(function: Callable[..., Tensor], dtype: torch.dtype, nodes: int, edges: int, row: tuple[int, ...]) -> None:
    check_messages(function, dtype, nodes, edges, row)
    assert not has_sums_of_torch() and not is_sorted()


def test_messages_are_not_stored() -> None:
    """A kernel for zeros, and one that reads rows of nodes, multiplies them, and adds them in vectors."""
    x, w, edges = torch.randn(40, 512), torch.randn(60, 1), torch.randint(0, 40, (2, 60))
    run(messages, x, *edges, w)
    assert len(texts()) == 2 and sum("scatter_add_vector<4>" in text for text in texts()) == 1  # whichever is compiled first


@pytest.mark.parametrize(("row", "elems"), [(64, 4), (66, 2), (63, 1), (2, 2)])
def test_vectors_divide_rows(row: int, elems: int) -> None:
    check(taken, torch.randn(20, row).to(torch.bfloat16), torch.randint(0, 20, (150,)))
    (adding,) = [text for text in texts() if "scatter_add" in text]
    assert (f"scatter_add_vector<{elems}>" in adding) if elems > 1 else ("scatter_add(" in adding)


def test_a_chip_without_vectors_adds_single_floats() -> None:
    """Neighbouring threads add neighbouring elements then."""
    with options(chip="A100"):
        check(taken, torch.randn(20, 64), torch.randint(0, 20, (150,)))
    (adding,) = [text for text in texts() if "scatter_add" in text]
    assert "vector" not in adding.replace("load_global_vector", "") and "(int)threadIdx.x * 4" not in adding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(5, 30), (1, 7), (30, 1), (40, 50)], ids=str)
def test_weighted_sums(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """The gradient of a table is added in the loops of samples and places, without a product in memory."""
    x, i, w = torch.randn(9, 20).to(dtype), torch.randint(0, 9, shape), torch.rand(shape).to(dtype)
    check(lambda x, i: weighted_sums(x, i, w.to(x.dtype)), x, i)
    assert not has_sums_of_torch() and sum("scatter_add" in text for text in texts()) == 1


def edge_softmax(s: Tensor, node: Tensor) -> Tensor:
    to = node[:, None].expand_as(s)
    e = torch.exp(s)
    return e / torch.zeros(30, s.shape[1], dtype=s.dtype).scatter_add(0, to, e)[node]


def degrees(x: Tensor, node: Tensor) -> Tensor:
    degree = torch.zeros(x.shape[0], dtype=x.dtype).scatter_add(0, node, torch.ones(node.shape[0], dtype=x.dtype))
    return x[node] * (degree + 1).rsqrt()[node][:, None]


@pytest.mark.parametrize("function", [edge_softmax, degrees], ids=lambda f: f.__name__)
@pytest.mark.parametrize("width", [1, 3, 8])
def test_short_rows_of_edges(function: Callable[..., Tensor], width: int) -> None:
    node, x = torch.randint(0, 30, (200,)), torch.rand(200 if function is edge_softmax else 30, width)
    got, slope = gradient(function, x, node)
    leaf = x.double().requires_grad_()
    function(leaf, node).backward(slope.double())
    assert leaf.grad is not None
    torch.testing.assert_close(got.double(), leaf.grad, rtol=1e-5, atol=1e-5)  # differences of numbers of about 1
    assert not has_sums_of_torch() and not is_sorted()


def test_rows_are_added_to_what_a_graph_computes() -> None:
    def function(x: Tensor, i: Tensor) -> Tensor:
        return x.exp().index_add(0, i, x[i] * 2)

    x, i = torch.randn(20, 24), torch.randint(0, 20, (90,))
    torch.testing.assert_close(run(function, x, i), function(x, i))
    assert not has_sums_of_torch()


@pytest.mark.parametrize("dynamic", [True, None])
def test_open_sizes(dynamic: bool | None) -> None:
    compiled = torch.compile(taken, backend=backend, options={"emulate": True, "debug": True}, dynamic=dynamic)
    for length in (40, 333, 1000, 50):
        x, i = torch.randn(30, 20, requires_grad=True), torch.randint(0, 30, (length,))
        torch._dynamo.mark_dynamic(i, 0)
        compiled(x, i).sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, torch.bincount(i, minlength=30)[:, None].expand(30, 20) * 2.0)


@pytest.mark.parametrize("torchs", [True, False])
def test_equal_bits_are_asked_for(torchs: bool) -> None:
    """By torch's setting or weft's: the index is sorted, whatever `row_sums` says."""
    x, i = torch.randn(9, 32).to(torch.bfloat16), torch.randint(0, 9, (4000,))
    torch.use_deterministic_algorithms(torchs)
    try:
        with options(deterministic=not torchs):
            first, slope = gradient(taken, x, i)
            torch._dynamo.reset()
            assert torch.equal(first, gradient(taken, x, i, slope=slope)[0])
    finally:
        torch.use_deterministic_algorithms(False)
    assert is_sorted() and not has_sums_of_torch()


def test_equal_bits_are_asked_for_later() -> None:
    """Of a graph that was compiled before: torch adds then, in one order, and not two kernels."""
    values, i = torch.randn(500, 8), torch.randint(0, 7, (500,))
    compiled = torch.compile(lambda values, i: torch.zeros(7, 8).index_add(0, i, values), backend=backend, options={"emulate": True, "strict": True})
    wanted = torch.zeros(7, 8, dtype=torch.float64).index_add(0, i, values.double())
    for is_asked in (False, True, False):
        with options(deterministic=is_asked):
            torch.testing.assert_close(compiled(values, i).double(), wanted, atol=1e-4, rtol=1e-5)


CHOICES = {  # places, rows, elements of a row, of this type, and what is faster on an H200
    "edges": (400000, 50000, 64, torch.bfloat16, "atomic"),
    "few rows": (262144, 32, 16, torch.float32, "sort"),
    "short rows": (400000, 50000, 8, torch.float32, "atomic"),
    "a table of 16 bits": (16384, 128256, 4096, torch.bfloat16, "sort"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_faster_way_is_taken(name: str) -> None:
    places, rows, elems, dtype, wanted = CHOICES[name]
    graph = torch.fx.symbolic_trace(lambda: None)
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    from weft.frontend.row_sums import sum_rows

    with FakeTensorMode(), options(row_sums="auto", chip="H200"):
        values, i = torch.empty(places, elems, dtype=dtype), torch.empty(places, dtype=torch.int64)
        graph = make_fx(lambda v, i: torch.ops.aten.index_put(torch.ops.aten.full([rows, elems], 0, dtype=dtype), [i], v, True))(values, i)
        sum_rows(graph.graph)
    targets = {str(node.target) for node in graph.graph.nodes}
    assert ("weft.added_rows.default" in targets) == (wanted == "atomic") and ("weft.sorted_row_sums.default" in targets) == (wanted == "sort")
