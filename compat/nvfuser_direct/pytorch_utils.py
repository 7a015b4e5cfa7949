"""weft.api.pytorch_utils under nvFuser's name."""

import sys

from weft.api import pytorch_utils

sys.modules[__name__] = pytorch_utils
