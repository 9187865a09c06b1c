"""The before/after table at the end of a recipe or an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from covey.runlog.text import number, visible


@dataclass(frozen=True, slots=True)
class EvalRow:
    """One evaluated model. Rates are fractions in [0, 1]; None is a value that does not exist (a gap)."""

    name: str
    accuracy: float | None
    interval: tuple[float, float] | None
    """95% interval of the accuracy (Wilson)."""
    format: float | None
    accuracy_when_formatted: float | None
    mean_length: float | None
    """Completion tokens."""
    n: int
    """Completions scored."""


def before_after_table(rows: Sequence[EvalRow]) -> Table:
    """A rich table, one line per model, rates in percent; fits 80 columns when names are short."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", overflow="fold")
    for heading in ("accuracy", "95%\ninterval", "format", "acc. if\nformatted", "mean\nlength", "n"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        interval = None if row.interval is None else " - ".join(map(_percent, row.interval))
        table.add_row(
            Text(visible(row.name)),
            _percent(row.accuracy),
            interval or number(None),
            _percent(row.format),
            _percent(row.accuracy_when_formatted),
            number(row.mean_length, ".1f"),
            str(row.n),
        )
    return table


def _percent(rate: float | None) -> str:
    return number(rate, ".1%")
