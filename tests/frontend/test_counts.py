"""How many graphs and kernels are compiled: for few sizes, and for equal layers."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn

from weft.frontend.backend import GRAPHS, backend


@pytest.mark.usefixtures("fresh")
def test_size_1_and_three_others_are_three_graphs_and_three_kernels() -> None:
    """The first size, size 1, which Dynamo never leaves open, and one graph with one kernel for all others."""
    model = nn.Sequential(nn.RMSNorm(48), nn.SiLU())
    compiled = torch.compile(model, backend=backend, options={"emulate": True})
    with torch.no_grad():
        for batch in (4, 1, 7, 33):
            x = torch.randn(batch, 48)
            torch.testing.assert_close(compiled(x), model(x))
    assert [len(graph.calls) for graph in GRAPHS] == [1, 1, 1]
    assert len({kernel.program.name for graph in GRAPHS for kernel in graph.calls[0].kernels()}) <= 3


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.RMSNorm(32), nn.Linear(32, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.up(self.norm(x)))


@pytest.mark.usefixtures("fresh")
def test_equal_layers_share_kernels() -> None:
    """At most two kernels for each structure, though every layer has its regions."""
    model = nn.Sequential(*[Layer() for _ in range(5)])
    compiled = torch.compile(model, backend=backend, options={"emulate": True})
    with torch.no_grad():
        compiled(torch.randn(4, 32))
    calls = [call for graph in GRAPHS for call in graph.calls]
    structures = {call.plan.key for call in calls}
    assert len(calls) == 6 and len(structures) == 3
    assert len({kernel.program.name for call in calls for kernel in call.kernels()}) <= 2 * len(structures)
