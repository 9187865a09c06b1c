"""Tasks: what a row means, how it becomes a prompt, and how an answer is checked."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any, cast

from covey.errors import UserError
from covey.tasks.base import Task, shown

TASKS: dict[str, str] = {
    "countdown": "covey.tasks.countdown:CountdownTask",
    "math": "covey.tasks.math:MathTask",
}
"""Task name -> "module:Class". A new task is one file and one line here."""


class ByRow:
    """Rows of several tasks: each names its own in its column ``task``."""

    name = "by_row"
    quick = False

    def verify(self, text: str, columns: Mapping[str, Any]) -> bool | float | None:
        return get_task(columns["task"]).verify(text, columns)

    def validate_row(self, row: Mapping[str, Any]) -> list[str]:
        if row.get("task") not in TASKS:
            return [f'"task" must be one of {", ".join(TASKS)}, found {shown(row.get("task"))}']
        return get_task(row["task"]).validate_row(row)

    def normalize_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return get_task(row["task"]).normalize_row(row)

    def difficulty(self, columns: Mapping[str, Any]) -> float | None:
        return get_task(columns["task"]).difficulty(columns)


def get_task(name: str) -> Task:
    """Return a new task object by its table name; an unknown name is a UserError that lists the table."""
    target = TASKS.get(name)
    if target is None:
        near = difflib.get_close_matches(name, TASKS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UserError(f"unknown task {name!r}.{hint} Known tasks: {', '.join(sorted(TASKS))}.")
    module, _, attribute = target.partition(":")
    return cast(Task, getattr(importlib.import_module(module), attribute)())
