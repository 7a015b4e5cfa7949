"""Logarithms of a softmax: which become differences, and that results are those of logarithms, also of shares that are 0, denormal or no numbers."""

from __future__ import annotations

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.compiler import prepare

BF16, FLOAT = torch.bfloat16, torch.float32
TYPES = {BF16: DataType.BFloat16, FLOAT: DataType.Float}


def entropies(dtype: torch.dtype, *, is_below: bool = True, dims: tuple[int, int] = (1, 1)) -> FusionDefinition:
    """The logarithms of the softmax of x. is_below: what is subtracted is the maximum of x, else its mean. dims: of the maximum and of the sum."""
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=TYPES[dtype]), DataType.Float)
        least = (fd.ops.max if is_below else fd.ops.mean)(x, [dims[0]], True)
        e = fd.ops.exp(fd.ops.sub(x, least))
        p = fd.ops.div(e, fd.ops.sum(e, [dims[1]], True))
        fd.add_output(fd.ops.cast(fd.ops.log(p), TYPES[dtype]))
    return fd


def names(fd: FusionDefinition) -> list[str]:
    return [expr.op_name for expr in prepare(fd.fusion).fusion.tensor_exprs()]


@pytest.mark.parametrize("dtype", [BF16, FLOAT])
def test_a_row_has_one_logarithm(dtype: torch.dtype) -> None:
    fusion = prepare(entropies(dtype).fusion).fusion
    (log,) = [e for e in fusion.tensor_exprs() if e.op_name == "log"]
    assert "log_of_share" in names(entropies(dtype))
    assert any(axis.is_broadcast() for axis in log.outputs[0].get_logical_domain())


def test_results_of_32_bits_keep_logarithms_where_the_difference_is_less_exact() -> None:
    """Without a maximum what is subtracted may be large where the share is near 1; a maximum along other axes leaves sums near 0."""
    assert "log_of_share" not in names(entropies(FLOAT, is_below=False))
    assert "log_of_share" not in names(entropies(FLOAT, dims=(0, 1)))
    assert "log_of_share" in names(entropies(BF16, is_below=False))


@pytest.mark.parametrize("dtype", [BF16, FLOAT])
@pytest.mark.parametrize("shape", [(7, 33), (1, 40), (65, 1), (3, 4000), (0, 8)])
def test_results_are_those_of_logarithms(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(5)) * 4).to(dtype)
    (found,) = entropies(dtype).execute([x])
    exact = x.double().log_softmax(1)
    # t and log b are rounded, and their difference: half a unit in the last place each, of at most 32
    limit = 2.0**-20 + (2.0**-8 if dtype is BF16 else 2.0**-23) * exact.abs()
    assert ((found.double() - exact).abs() <= limit).all()


@pytest.mark.parametrize("row", [[0.0, -200.0, -90.0], [float("inf"), 1.0, 2.0], [float("nan"), 1.0, 2.0], [-float("inf"), 0.0, 1.0], [-float("inf")] * 3])
def test_zeros_infinities_and_what_is_no_number_are_as_in_torch(row: list[float]) -> None:
    """A share that is rounded to 0 has the logarithm of 0; one that is denormal has that of the exact share."""
    x = torch.tensor([row])
    (found,) = entropies(FLOAT).execute([x])
    exact = x.softmax(1).log()
    torch.testing.assert_close(found, exact, rtol=2.0**-6, atol=0.0, equal_nan=True)  # torch's own denormal shares have few digits


def test_the_divergence_of_two_softmaxes() -> None:
    """torch.nn.functional.kl_div of log_softmax and softmax through torch.compile, forward and backward, beside float64."""
    import torch.nn.functional as F

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.kl_div(x.to(torch.promote_types(x.dtype, FLOAT)).log_softmax(-1), y.to(torch.promote_types(y.dtype, FLOAT)).softmax(-1), reduction="batchmean")

    generator = torch.Generator().manual_seed(6)
    for shape in ((5, 100), (3, 1001), (1, 7)):
        given = [torch.randn(shape, generator=generator).bfloat16().requires_grad_() for _ in range(2)]
        wide = [t.detach().double().requires_grad_() for t in given]
        out, exact = torch.compile(loss, backend="weft", options={"emulate": True})(*given), loss(*wide)
        assert abs(out.item() - exact.item()) <= 1e-5 * abs(exact.item())
        for found, wanted in zip(torch.autograd.grad(out, given), torch.autograd.grad(exact, wide)):
            assert ((found.double() - wanted).abs() <= 2.0**-8 * wanted.abs() + 1e-5 * wanted.abs().max()).all()
