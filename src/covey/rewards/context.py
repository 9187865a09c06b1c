"""What a shipped reward may need besides the completion it judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from covey.rewards.spec import RewardParams
from covey.tasks.base import Task

Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]
"""Texts -> unit vectors of one length."""

Params = TypeVar("Params", bound=RewardParams)


@dataclass(frozen=True, slots=True)
class RewardContext:
    """Given to every ``build(context)`` of the reward table."""

    task: Task | None = None
    max_completion_length: int = 512
    """Tokens."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of rewards that were given, by name."""
    embed: Embed | None = None

    def params(self, kind: type[Params]) -> Params:
        """The options of one reward, its defaults where nothing is given; checked."""
        names = {item.name for item in fields(kind)}
        params = kind(**{name: value for name, value in self.options.items() if name in names})
        params.check(self.max_completion_length)
        return params
