"""What a shipped reward may need besides the completion it judges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from covey.tasks.base import Task

Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]
"""Texts -> unit vectors of one length."""


@dataclass(frozen=True, slots=True)
class RewardContext:
    """Given to every ``build(context)`` of the reward table."""

    task: Task | None = None
    soft_max_length: int | None = None
    """Tokens; from here on a completion is punished in full."""
    soft_cache_length: int | None = None
    """Tokens before that over which the punishment grows."""
    embed: Embed | None = None
