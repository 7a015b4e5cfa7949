"""Write docs/settings.md from the table of settings in `weft/options.py`.

    python docs/make_settings.py            write docs/settings.md beside this file
    python docs/make_settings.py --print    print it
"""

from __future__ import annotations

import sys
from pathlib import Path

from weft.options import describe

TARGET = Path(__file__).with_name("settings.md")

PAGE = """# Settings

Made by `python docs/make_settings.py` from `weft/options.py`; `weft settings` prints the same table.

A setting is an environment variable, a keyword in a `with` block, or both; the block wins:

```python
from weft.options import current, options

with options(dump="scheduler,cuda", cache=False):
    assert current().is_dumped("cuda") and not current().cache
```

A setting that changes code is part of every cache key. The variables are read once, when the first setting is needed.

```text
{table}
```
"""


def page() -> str:
    """Return the text of the page."""
    return PAGE.format(table=describe())


if __name__ == "__main__":
    if "--print" in sys.argv:
        print(page(), end="")
    else:
        TARGET.write_text(page(), encoding="utf-8")
