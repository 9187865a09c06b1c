"""Tasks: what a row means, how it becomes a prompt, and how an answer is checked."""

from __future__ import annotations

import difflib
import importlib
from typing import cast

from covey.errors import UserError
from covey.tasks.base import Task

TASKS: dict[str, str] = {
    "countdown": "covey.tasks.countdown:CountdownTask",
}
"""Task name -> "module:Class". A new task is one file and one line here."""


def get_task(name: str) -> Task:
    """Return a new task object by its table name; an unknown name is a UserError that lists the table."""
    target = TASKS.get(name)
    if target is None:
        near = difflib.get_close_matches(name, TASKS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UserError(f"unknown task {name!r}.{hint} Known tasks: {', '.join(sorted(TASKS))}.")
    module, _, attribute = target.partition(":")
    return cast(Task, getattr(importlib.import_module(module), attribute)())
