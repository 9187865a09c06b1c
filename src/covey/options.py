"""Options that belong to one loss or one reward: a field of its params dataclass, with its meaning."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, help: str, *, required: str | None = None) -> Any:
    """A field of a params dataclass; it becomes a flag by itself, with ``help`` as its help text.

    ``required``: no value is right for everybody; the default must be None, and the text says what to give.
    """
    return field(default=default, metadata={"help": help, "required": required})
