"""Cosine length reward (arXiv 2502.03373): a right answer is worth more when short, a wrong one when long."""

from __future__ import annotations

import math
from dataclasses import dataclass

from covey.errors import UserError
from covey.options import option
from covey.rewards.accuracy import build as build_accuracy
from covey.rewards.context import RewardContext
from covey.rewards.functions import SampleReward
from covey.rewards.spec import RewardParams
from covey.types import Completion, Prompt


@dataclass(frozen=True, slots=True)
class CosineParams(RewardParams):
    """Rewards at length 0 and at the longest; names and values as ms-swift documents them."""

    cosine_min_len_value_correct: float = option(1.0, "cosine: a right answer of no length")
    cosine_max_len_value_correct: float = option(0.5, "cosine: a right answer of the longest length")
    cosine_min_len_value_wrong: float = option(-0.5, "cosine: a wrong answer of no length")
    cosine_max_len_value_wrong: float = option(0.0, "cosine: a wrong answer of the longest length")
    cosine_max_len: int | None = option(None, "cosine: the longest length in tokens; default: --max_completion_length")

    def check(self, max_completion_length: int) -> None:
        if self.cosine_max_len is not None and self.cosine_max_len < 1:
            raise UserError(f"--cosine_max_len {self.cosine_max_len} must be at least 1 token")
        wrong = max(self.cosine_min_len_value_wrong, self.cosine_max_len_value_wrong)
        if wrong > min(self.cosine_min_len_value_correct, self.cosine_max_len_value_correct):
            raise UserError(f"--cosine_*_value_wrong {wrong:g}: a wrong answer would be worth more than a right one")


def build(context: RewardContext) -> SampleReward:
    """The reward function; right and wrong are the task's."""
    params = context.params(CosineParams)
    correct = build_accuracy(context)
    longest = params.cosine_max_len or context.max_completion_length

    def cosine(prompt: Prompt, completion: Completion) -> float | None:
        right = correct(prompt, completion)
        if right is None:
            return None
        if right >= 1:
            ends = params.cosine_min_len_value_correct, params.cosine_max_len_value_correct
        else:
            ends = params.cosine_min_len_value_wrong, params.cosine_max_len_value_wrong
        return cosine_between(*ends, len(completion.token_ids), longest)

    return cosine


def cosine_between(at_none: float, at_longest: float, tokens: int, longest: int) -> float:
    """Half a cosine from ``at_none`` tokens to ``at_longest``, which it keeps beyond."""
    share = min(tokens / longest, 1.0)
    return at_longest + 0.5 * (at_none - at_longest) * (1 + math.cos(math.pi * share))
