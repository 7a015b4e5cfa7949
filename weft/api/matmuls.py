"""nvFuser's option that keeps matrix products from being run by torch.

Owns which products weft then refuses: those that nvFuser's own kernels would not compute either. The others run in torch as always.
"""

from __future__ import annotations

from ..compiler import NoScheduler
from ..ir.fusion import Fusion
from ..ir.graph_ops import TorchOp


def refuse_without_torch(fusion: Fusion) -> None:
    """Raise NoScheduler for a product of operands that are not of 16 bits, where the option `matmul_expr_eval` is disabled."""
    for expr in fusion.tensor_exprs():
        if isinstance(expr, TorchOp) and expr.op_name in ("matmul", "linear") and expr.tensor_inputs[0].dtype().bits != 16:
            dtype = expr.tensor_inputs[0].dtype()
            reason = f"{expr.outputs[0]} is a {expr.op_name} of {dtype} operands; without matmul_expr_eval its operands must be Half or BFloat16"
            raise NoScheduler({"matmul": reason}, [expr])
