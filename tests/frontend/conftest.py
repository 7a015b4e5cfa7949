"""bf16 products on CPUs that announce AMX but forbid it die with SIGILL unless oneDNN is told before torch loads it; graphs of one run are not the next one's."""

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="weft-graphs-")
atexit.register(shutil.rmtree, os.environ["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)
