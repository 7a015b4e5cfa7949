"""Warm calls: a graph that is called often is one function without calls of regions, and inference goes past AOTAutograd's wrappers where these do nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import weft
from weft.frontend import graph_plan
from weft.frontend.backend import backend
from weft.frontend.graph_plan import Boxed
from weft.frontend.graph_text import steps_of
from weft.frontend.region_call import RegionCall
from weft.frontend.warm_graph import WarmGraph

OPTIONS = {"emulate": True, "strict": True, "cache": False}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Boxed]:
    """The graphs that a test makes."""
    made: list[Boxed] = []
    plain: Callable[..., None] = Boxed.__init__

    def seen(self: Boxed, *rest: Any) -> None:
        made.append(self)
        plain(self, *rest)

    monkeypatch.setattr(Boxed, "__init__", seen)
    return made


@pytest.fixture
def regions_called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the regions that are called."""
    names: list[str] = []
    plain = RegionCall._run

    def seen(self: RegionCall, inputs: tuple[Any, ...]) -> Any:
        names.append(self.__name__)
        return plain(self, inputs)

    monkeypatch.setattr(RegionCall, "_run", seen)
    return names


def python_calls(call: Callable[[], Any]) -> list[str]:
    """The Python functions that a call enters."""
    names: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names


def block(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A norm in front of two products, and what follows them; the products want the norm's result as a matrix."""
    y = torch.nn.functional.layer_norm(x, (16,))
    gate, up = torch.nn.functional.linear(y, w), torch.nn.functional.linear(y, v)
    z = torch.nn.functional.silu(gate) * up
    return z, z.amax(-1) + x.amax(-1)


def tensors(rows: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(rows, 5, 16), torch.randn(24, 16), torch.randn(24, 16)]


def warmed(function: Callable[..., Any], inputs: list[torch.Tensor], **options: Any) -> Callable[..., Any]:
    fast = torch.compile(function, backend=backend, options=OPTIONS | options)
    for _ in range(graph_plan.CALLS_BEFORE_WARM + 1):
        fast(*inputs)
    return fast


def run(graph: Boxed, inputs: list[torch.Tensor]) -> Any:
    """Call a graph's function as torch does: gradients are not recorded."""
    with torch.no_grad():
        return graph.run(list(inputs))


def check(got: Any, function: Callable[..., Any], inputs: list[torch.Tensor]) -> None:
    for mine, eager in zip(got, function(*[t.double() for t in inputs]), strict=True):
        assert mine.shape == eager.shape and mine.stride() == eager.stride()
        torch.testing.assert_close(mine, eager.float())


def test_a_warm_graph_is_one_python_function(graphs: list[Boxed], regions_called: list[str]) -> None:
    """Not a call of a region, nor of what a region calls; and in front of the graph none of AOTAutograd's."""
    inputs = tensors()
    with torch.no_grad():
        fast = warmed(block, inputs)
    before = len(regions_called)
    assert before == 2 * (graph_plan.CALLS_BEFORE_WARM + 1)
    with torch.no_grad():
        check(fast(*inputs), block, inputs)
    assert len(regions_called) == before
    (graph,) = graphs
    plain, warm = graph.plain(list(inputs)), run(graph, inputs)
    assert all(torch.equal(a, b) for a, b in zip(plain, warm, strict=True))
    with torch.no_grad():
        inside, whole = python_calls(lambda: graph.run(list(inputs))), python_calls(lambda: fast(*inputs))
    assert inside.count("forward") == 1 and not {"plain", "execute", "_run"} & set(inside)
    assert "forward" in whole and not any("runtime_wrapper" in name for name in whole)


def test_results_for_one_view_are_made_in_its_form(graphs: list[Boxed]) -> None:
    """Both products read one view, and the norm's result is allocated as that."""
    inputs = tensors()
    warmed(block, inputs)
    steps = steps_of(graphs[0]._source).steps
    views = [step for step in steps if "reinterpret" in step.function]
    assert len(views) == 4  # the matrix, two transposed weights, and a product in the shape of what is written over it
    made: list[str] = []
    graph = graphs[0]
    reinterpret = graph.run.__globals__[views[0].function]  # type: ignore[attr-defined]
    graph.run.__globals__[views[0].function] = lambda *args: (made.append("view"), reinterpret(*args))[1]  # type: ignore[attr-defined]
    check(run(graph, inputs), block, inputs)
    assert len(made) == 3


def test_arguments_are_taken_and_values_freed(graphs: list[Boxed]) -> None:
    inputs = tensors()
    warmed(block, inputs)
    given = list(inputs)
    with torch.no_grad():
        graphs[0].run(given)
    assert not given
    names = graphs[0].run.__code__.co_varnames  # type: ignore[attr-defined]
    assert "addmm" in names or "mm" in names


def test_another_call_goes_the_ordinary_way(graphs: list[Boxed], regions_called: list[str]) -> None:
    """Tensors at odd addresses, of other types or memory, other settings, and profilers: what a region's call looks at, a warm one does, too."""
    inputs = tensors()
    fast = warmed(block, inputs)
    (graph,) = graphs

    def called(values: list[torch.Tensor]) -> int:
        del regions_called[:]
        check(run(graph, values), block, values)
        return len(regions_called)

    assert called(inputs) == 0
    moved = torch.randn(3 * 5 * 16 + 1)
    assert called([moved[1:].view(3, 5, 16), *inputs[1:]]) == 2  # misaligned
    assert called([torch.randn(3, 5, 16), *inputs[1:]]) == 0  # another address is no other kind
    assert called(inputs) == 0
    with pytest.raises(weft.errors.WeftError, match="stride"):
        run(graph, [inputs[0].mT.contiguous().mT, *inputs[1:]])
    with torch.profiler.profile() as profile:
        assert called(inputs) == 2
    assert any(event.key.startswith("weft_") for event in profile.key_averages())
    with weft.options(check="races"):
        assert called(inputs) == 2
    assert called(inputs) == 0
    small = torch.randn(3, 5, 16)
    small.untyped_storage().resize_(64)
    del regions_called[:]
    with pytest.raises(weft.errors.WeftError, match="storage"):
        run(graph, [small, *inputs[1:]])
    assert regions_called
    with torch.no_grad():
        check(fast(*inputs), block, inputs)


def test_a_region_that_fails_is_called_as_ever(graphs: list[Boxed], regions_called: list[str]) -> None:
    inputs = tensors()
    warmed(block, inputs)
    names: Any = graphs[0].run.__globals__  # type: ignore[attr-defined]
    call = next(name for name in names if name.endswith("launch0") or name.endswith("call0"))

    def fails(*arguments: Any) -> None:
        raise RuntimeError("no launch")

    names[call] = fails
    del regions_called[:]
    check(run(graphs[0], inputs), block, inputs)
    assert len(regions_called) == 1


def test_open_sizes_are_not_written_out(graphs: list[Boxed], regions_called: list[str]) -> None:
    fast = torch.compile(torch.relu, backend=backend, dynamic=True, options=OPTIONS)
    for rows in (3, 4, 5, 6, 7):
        x = torch.randn(rows, rows + 1)
        assert torch.equal(fast(x), torch.relu(x))
    assert len(graphs) == 1 and graphs[0].run == graphs[0].plain


def test_training_is_written_out_both_ways(graphs: list[Boxed], regions_called: list[str]) -> None:
    inputs = [t.requires_grad_() for t in (torch.randn(6, 8), torch.randn(8, 8))]

    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(x) @ w).sigmoid().square()

    fast = torch.compile(layer, backend=backend, options=OPTIONS)
    grad = torch.randn(6, 8)
    wanted = torch.autograd.grad(layer(*[t.double() for t in inputs]), inputs, grad.double())
    for number in range(5):
        del regions_called[:]
        for got, want in zip(torch.autograd.grad(fast(*inputs), inputs, grad), wanted, strict=True):
            torch.testing.assert_close(got, want)
        assert (number >= 3) == (not regions_called)
    assert len(graphs) == 2


def writes(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x)
    x.mul_(2)
    return y


def shows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y = torch.relu(x)
    return x, x[1:], y


def shows_a_result(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.relu(x)
    return y, y.t()


@pytest.mark.parametrize("function", [writes, shows, shows_a_result])
def test_what_writes_into_inputs_or_returns_views_keeps_its_wrappers(function: Callable[..., Any]) -> None:
    fast = torch.compile(function, backend=backend, options=OPTIONS)
    for _ in range(5):
        x = torch.randn(4, 8)
        y = x.clone()
        got, want = fast(x), function(y)
        torch.testing.assert_close(x, y)
        torch.testing.assert_close(got, want)
        if function is shows:
            assert got[0] is x and got[1].data_ptr() == x[1:].data_ptr()
        if function is shows_a_result:
            assert got[1].data_ptr() == got[0].data_ptr()
    assert any("runtime_wrapper" in name for name in python_calls(lambda: fast(x)))


def product(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ x)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16)])
def test_wrappers_that_put_a_mode_off_stay(mode: Callable[[], Any]) -> None:
    """Around a graph of inference they put gradients and autocast off, where these are on."""
    x = torch.randn(8, 8)
    with mode():
        fast = warmed(product, [x])
        is_wrapped = any("runtime_wrapper" in name for name in python_calls(lambda: fast(x)))
        assert is_wrapped == (mode not in (torch.no_grad, torch.inference_mode))
        torch.testing.assert_close(fast(x), product(x), rtol=0.02, atol=0.05)


def attention(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Views of views of what torch computes, whose place in memory is noted, and asked for again."""
    heads = torch.nn.functional.scaled_dot_product_attention(x, x, x).transpose(1, 2)
    return torch.relu(torch.nn.functional.linear(heads.reshape(2, 5, 8), w))


def test_views_of_views_are_one_where_their_tensor_is_as_noted(graphs: list[Boxed]) -> None:
    inputs = [torch.randn(2, 5, 2, 4).transpose(1, 2), torch.randn(3, 8)]
    with torch.no_grad():
        fast = warmed(attention, inputs)
        (graph,) = graphs
        names: Any = graph.run.__globals__  # type: ignore[attr-defined]
        made: list[Any] = []
        view = names["w_view"]
        names["w_view"] = lambda *args: (made.append(args[1:]), view(*args))[1]
        torch.testing.assert_close(fast(*inputs), attention(*inputs))
        assert made == [((10, 8), (8, 1), 0)]
        (like,) = [name for name in names if name.endswith("_like")]
        names[like] = lambda tensor: False
        torch.testing.assert_close(fast(*inputs), attention(*inputs))
        assert len(made) == 1


def test_lines_are_read_as_they_were_written(graphs: list[Boxed]) -> None:
    inputs = tensors()
    torch.compile(block, backend=backend, options=OPTIONS)(*inputs)
    source = graphs[0]._source
    found = steps_of(source)
    assert found.arguments and all(step.function and step.makes for step in found.steps)
    lines = [line.strip() for line in source.splitlines()[1:]]
    assert [step.text for step in found.steps] == lines[2:-1] and found.returned == lines[-1]


def test_views_to_sizes_that_are_variables_are_in_no_chain(graphs: list[Boxed]) -> None:
    torch.compile(block, backend=backend, options=OPTIONS)(*tensors())
    boxed = graphs[0]
    name, view = "torch_view", torch.Tensor.view
    before, last = boxed._source.rstrip("\n").rsplit("\n", 1)
    indent = last[: len(last) - len(last.lstrip())]
    argument = steps_of(boxed._source).arguments[0]
    source = f"{before}\n{indent}wide = {name}({argument}, [some_size, 64])\n{last}\n"
    assert any(step.function == name and not step.args for step in steps_of(source).steps)
    assert not WarmGraph(source, {**boxed._names, name: view}, boxed.plain)._chains
