"""Making fusions in the tests of ops: tensors by shape, functions by name."""

from __future__ import annotations

from typing import Any

from weft.dtypes import DataType
from weft.expr import const, var
from weft.ir.enums import IterType
from weft.ir.fusion import Fusion
from weft.ir.values import Scalar, TensorView
from weft.ops import names  # noqa: F401  (ops find each other by its table)
from weft.ops.functions import lookup


class Graph:
    """A fusion under construction: `g.tensor([4, -1])` adds an input, `g.add(x, 1.0)` an op, -1 is a symbolic extent."""

    def __init__(self) -> None:
        self.fusion = Fusion()

    def tensor(self, shape: list[int], dtype: DataType = DataType.Float, expanded: dict[int, int] | None = None) -> TensorView:
        number = self.fusion._tensor_count
        axes = []
        for i, extent in enumerate(shape):
            if expanded and i in expanded:
                axes.append(self.fusion.new_axis(1, IterType.broadcast, expanded_extent=var(f"T{number}.size[{i}]") if expanded[i] < 0 else const(expanded[i])))
            elif extent == 1:
                axes.append(self.fusion.new_axis(1, IterType.broadcast))
            else:
                axes.append(self.fusion.new_axis(var(f"T{number}.size[{i}]", lower=1) if extent < 0 else extent))
        tensor = self.fusion.new_tensor(axes, dtype)
        self.fusion.add_input(tensor)
        return tensor

    def scalar(self, dtype: DataType = DataType.Double) -> Scalar:
        scalar = self.fusion.new_input_scalar(dtype)
        self.fusion.add_input(scalar)
        return scalar

    def out(self, *values: Any) -> Fusion:
        for value in values:
            self.fusion.add_output(value)
        return self.fusion

    def __getattr__(self, name: str) -> Any:
        function = lookup(name)
        return lambda *args, **kwargs: function(self.fusion, *args, **kwargs)
