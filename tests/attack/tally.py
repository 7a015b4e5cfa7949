"""What an attack did: how many tries ended in which way. Only right results and errors with a code are allowed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

COLUMNS = ("tried", "coded error", "right", "wrong", "raw error", "crash", "hang")


@dataclass
class Tally:
    """Counts by column, and the first few of what must not happen."""

    kind: str
    counts: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def add(self, column: str, note: str = "") -> None:
        """Count one try. note: how to see it again."""
        self.counts["tried"] += 1
        self.counts[column] += 1
        if column not in ("coded error", "right") and len(self.bad) < 40:
            self.bad.append(f"{column}: {note}")

    @property
    def is_clean(self) -> bool:
        return not any(self.counts[column] for column in COLUMNS[3:])

    def row(self) -> str:
        """A row of the table of docs/attack.md."""
        return f"| {self.kind} | " + " | ".join(str(self.counts[column]) for column in COLUMNS) + " |"


HEADER = "| kind | " + " | ".join(COLUMNS) + " |\n|---|" + "---|" * len(COLUMNS)
