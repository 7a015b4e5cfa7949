"""bf16 products on CPUs that announce AMX but forbid it die with SIGILL unless oneDNN is told before torch loads it; graphs of one run are not the next one's."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="weft-graphs-")
atexit.register(shutil.rmtree, os.environ["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)

import pytest  # noqa: E402
import torch  # noqa: E402

from weft.frontend.record import GRAPHS  # noqa: E402
from weft.options import options  # noqa: E402
from weft.runtime import call_records  # noqa: E402
from weft.runtime.runtimes import forget_kernels  # noqa: E402


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing compiled before, and kernels in the emulator with all checks."""
    torch._dynamo.reset()
    GRAPHS.clear()  # a backward that is compiled after a reset is not forgotten by the next one
    torch.manual_seed(0)
    with options(check="races"):
        yield
    torch._dynamo.reset()


@pytest.fixture
def chosen_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels are chosen in this test and for it alone, whatever an earlier test or run has chosen. What the emulator's compiler made of a text is kept on disk."""
    monkeypatch.setattr(call_records, "_is_recorded", lambda options: False)
    forget_kernels()
    yield
    forget_kernels()
