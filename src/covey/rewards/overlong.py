"""Soft overlong punishment (DAPO, arXiv 2503.14476): 0 for short completions, falling to -1 at the longest allowed."""

from __future__ import annotations

from covey.errors import UserError
from covey.rewards.context import RewardContext
from covey.rewards.functions import SampleReward
from covey.types import Completion, Prompt


def build(context: RewardContext) -> SampleReward:
    """The reward function; UserError without lengths."""
    longest, cache = context.soft_max_length, context.soft_cache_length
    if longest is None or cache is None:
        raise UserError("the reward 'soft_overlong' needs soft_max_length and soft_cache_length, in tokens.")

    def soft_overlong(prompt: Prompt, completion: Completion) -> float:
        return soft_overlong_punishment(len(completion.token_ids), longest, cache)

    return soft_overlong


def soft_overlong_punishment(tokens: int, longest: int, cache: int) -> float:
    """0 up to ``longest - cache`` tokens, falling to -1 at ``longest``, and -1 beyond (verl and ms-swift go on)."""
    return max(-1.0, min(0.0, (longest - cache - tokens) / cache))
