"""What is refused by recipes. Read first: `WrongTensors`."""

from __future__ import annotations

from ..errors import UserError


class WrongTensors(UserError):
    code = "W867"
    what = "{problem}"
    fix = "{remedy}"
