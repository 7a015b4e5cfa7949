"""A part of the runs of opinfo.py (torch's own samples) and fuzz_modules.py (random modules): nothing is wrong, and little is declined."""

from __future__ import annotations

import fuzz_modules
import modules
import opinfo
import pytest
import torch
import whole_models

from weft.frontend.backend import GRAPHS

NAMES = (
    "softmax", "log_softmax", "nn.functional.layer_norm", "nn.functional.gelu", "nn.functional.silu", "var_mean", "sum", "amax", "clamp", "where", "addcmul",
    "nn.functional.nll_loss", "nn.functional.cross_entropy", "cat", "nn.functional.pad", "remainder", "rsub", "lerp", "expm1", "masked_fill", "scatter",
    "scatter_add", "cfloat",
)  # fmt: skip


@pytest.fixture(scope="module")
def entries() -> dict[str, object]:
    return {op.name: op for op in reversed(opinfo.entries(list(NAMES)))}


@pytest.mark.parametrize("name", NAMES)
def test_torchs_samples_are_right_or_declined_by_name(name: str, entries: dict[str, object]) -> None:
    tally = opinfo.Tally()
    for sample in opinfo.samples_of(entries[name], 5):
        opinfo.run_sample(entries[name], sample, tally)
    assert not tally.wrong and all(len(reason) > 8 for reason in tally.declined)
    assert tally.right >= tally.claimed * 0.6  # of all samples together 95 %; the first of an entry are often scalars and empty tensors


@pytest.mark.parametrize("name", ["softmax", "nn.functional.rms_norm", "nn.functional.kl_div"])
def test_our_functions_take_torchs_samples(name: str) -> None:
    (op,) = [op for op in opinfo.entries([name]) if op.name == name and not op.variant_test_name]
    tally = opinfo.Tally()
    for sample in opinfo.samples_of(op, 4):
        opinfo.run_function(opinfo.functions()[name], op, sample, tally)
    assert not tally.wrong and tally.right


@pytest.mark.parametrize(
    ("name", "training", "index"), [("InstanceNorm1d", True, 0), ("ELU", True, 2), ("BatchNorm1d", False, 0), ("LeakyReLU", True, 1), ("HuberLoss", True, 1)]
)
def test_torchs_samples_of_modules_forward_and_backward(name: str, training: bool, index: int) -> None:
    """By kernels in the emulator; the program runs every norm, loss and activation."""
    tally, info = opinfo.Tally(), modules.infos()[name]
    modules.run_module(info, modules.samples_of(info, training, "cpu")[index], training, tally)
    assert not tally.wrong and not tally.declined and tally.right


@pytest.mark.parametrize("seed", [10, 15, 3])
def test_a_random_module_and_its_gradients_equal_eager(seed: int) -> None:
    problem, text = fuzz_modules.run(seed)
    assert not problem, f"{problem}\n{text}"


def test_sums_of_rows_and_of_their_mirror_images_run_in_kernels(caplog: pytest.LogCaptureFixture) -> None:
    """A scheduler takes both together and cannot cut their loops alike: another one computes them, and torch nothing."""
    with caplog.at_level("WARNING", logger="weft"):
        problem, text = fuzz_modules.run(5001, kernels=True)
    assert not problem, f"{problem}\n{text}"
    assert "runs in torch" not in caplog.text


def test_a_cast_to_complex_numbers_runs_in_a_kernel() -> None:
    compiled = torch.compile(lambda x: torch.fft.fft((x + 1).to(torch.complex64)), backend="weft", options={"emulate": True, "strict": True, "debug": True})
    x = torch.arange(6).reshape(2, 3)
    torch.testing.assert_close(compiled(x), torch.fft.fft((x + 1).to(torch.complex64)))
    assert [op for graph in GRAPHS for op in graph.torch_ops] == ["aten._fft_c2c.default"]


@pytest.mark.parametrize(
    ("name", "dynamic"), [("vit block", False), ("adaln", True), ("llama block", False), ("llama block", True), ("losses", False), ("losses", True)]
)
def test_a_training_step_of_a_block_is_right_and_in_regions(name: str, dynamic: bool) -> None:
    """Static and with open sizes; the program runs nine blocks both ways."""
    out = whole_models.run(name, dynamic, "interpreter", "cpu")
    assert not out.problem and not out.fallbacks
    assert whole_models.own_share(out) > 0.9, out.reasons
