"""A line of the reward table: how a shipped reward is made, and its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covey.rewards.context import RewardContext
    from covey.rewards.functions import GroupReward


@dataclass(frozen=True, slots=True)
class RewardParams:
    """What the options of rewards share; their fields are ``covey.options.option``."""

    def check(self, max_completion_length: int) -> None:
        """Refuse (UserError) options that make no sense for completions of at most so many tokens."""


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """One shipped reward."""

    build: Callable[[RewardContext], Callable[..., Any] | GroupReward]
    """Makes the reward, in one of the forms of ``covey.rewards``."""
    params: type[RewardParams] | None = None
    isolated: bool = False
    """It may be slow, hang or run foreign code, so it needs a process of its own."""
    judges: bool = False
    """It asks the task whether an answer is right, so it is as slow as the task."""
