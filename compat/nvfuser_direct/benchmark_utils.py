"""weft.api.benchmark_utils under nvFuser's name."""

import sys

from weft.api import benchmark_utils

sys.modules[__name__] = benchmark_utils
