"""Scores completions that are already in a file: what ``covey score`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from covey.rewards.format import is_well_formed
from covey.tasks import get_task
from covey.tasks.base import Task, shown
from covey.tasks.dataset import Row, check_rows, read_jsonl


def score_file(task_name: str, path: str | Path) -> Iterator[dict[str, float | None]]:
    """Yield ``{"format": .., "accuracy": ..}`` for each row of a jsonl file, in order.

    Rows need a text field ``completion`` and the columns of the task. All rows are checked when this is called, before
    the first is scored; UserError lists the bad ones. ``accuracy`` is None when the task cannot judge the row.
    """
    task = get_task(task_name)

    def problems_of(row: Mapping[str, Any]) -> list[str]:
        if "completion" not in row:
            return ['"completion" is missing', *task.validate_row(row)]
        if not isinstance(row["completion"], str):
            return [f'"completion" must be text, found {shown(row["completion"])}', *task.validate_row(row)]
        return task.validate_row(row)

    rows, _ = check_rows(read_jsonl(Path(path)), problems_of)
    return (_score(task, row) for row in rows)


def _score(task: Task, row: Row) -> dict[str, float | None]:
    text = row.values["completion"]
    verdict = task.verify(text, row.values)
    return {
        "format": 1.0 if is_well_formed(text) else 0.0,
        "accuracy": None if verdict is None else float(verdict),
    }
