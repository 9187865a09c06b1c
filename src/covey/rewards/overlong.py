"""Soft overlong punishment (DAPO, arXiv 2503.14476): 0 for short completions, falling to -1 at the longest allowed."""

from __future__ import annotations

from dataclasses import dataclass

from covey.errors import UserError
from covey.options import option
from covey.rewards.context import RewardContext
from covey.rewards.functions import SampleReward
from covey.rewards.spec import RewardParams
from covey.types import Completion, Prompt


@dataclass(frozen=True, slots=True)
class OverlongParams(RewardParams):
    """Lengths in tokens."""

    soft_max_length: int | None = option(
        None, "soft_overlong: completions of this length get -1; default: --max_completion_length"
    )
    soft_cache_length: int | None = option(None, "soft_overlong: the tokens before that over which it falls from 0")

    def check(self, max_completion_length: int) -> None:
        longest, cache = self.soft_max_length, self.soft_cache_length
        if cache is None:
            raise UserError(
                "--reward_funcs soft_overlong needs --soft_cache_length: the tokens before --soft_max_length over which"
                " the punishment grows (DAPO: a fifth of it)"
            )
        if cache < 1:
            raise UserError(f"--soft_cache_length {cache} must be at least 1 token")
        if longest is not None and longest < cache:
            raise UserError(f"--soft_max_length {longest} must not be below --soft_cache_length {cache}")
        longest = max_completion_length if longest is None else longest
        if longest - cache >= max_completion_length:
            raise UserError(
                f"--reward_funcs soft_overlong starts after {longest - cache} tokens, but no completion has more than"
                f" --max_completion_length {max_completion_length}: lower --soft_max_length"
            )


def build(context: RewardContext) -> SampleReward:
    """The reward function."""
    params = context.params(OverlongParams)
    longest, cache = params.soft_max_length or context.max_completion_length, params.soft_cache_length
    assert cache is not None

    def soft_overlong(prompt: Prompt, completion: Completion) -> float:
        return soft_overlong_punishment(len(completion.token_ids), longest, cache)

    return soft_overlong


def soft_overlong_punishment(tokens: int, longest: int, cache: int) -> float:
    """0 up to ``longest - cache`` tokens, falling to -1 at ``longest``, and -1 beyond (verl and ms-swift go on)."""
    return max(-1.0, min(0.0, (longest - cache - tokens) / cache))
