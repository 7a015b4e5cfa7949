"""bf16 products on CPUs that announce AMX but forbid it die with SIGILL unless oneDNN is told before torch loads it."""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
