"""Repetition penalty (arXiv 2502.03373): the share of n-grams of words that were there before, times the largest."""

from __future__ import annotations

from dataclasses import dataclass

from covey.errors import UserError
from covey.options import option
from covey.rewards.context import RewardContext
from covey.rewards.functions import SampleReward
from covey.rewards.spec import RewardParams
from covey.types import Completion, Prompt


@dataclass(frozen=True, slots=True)
class RepetitionParams(RewardParams):
    """Of words split at white space, upper and lower case alike."""

    repetition_n_grams: int = option(3, "repetition: words per n-gram")
    repetition_max_penalty: float = option(-1.0, "repetition: the reward when everything is repeated")

    def check(self, max_completion_length: int) -> None:
        if self.repetition_n_grams < 1:
            raise UserError(f"--repetition_n_grams {self.repetition_n_grams} must be at least 1 word")
        if self.repetition_max_penalty > 0:
            raise UserError(f"--repetition_max_penalty {self.repetition_max_penalty:g} must be 0 or below")


def build(context: RewardContext) -> SampleReward:
    """The reward function."""
    params = context.params(RepetitionParams)

    def repetition(prompt: Prompt, completion: Completion) -> float:
        return params.repetition_max_penalty * repeated_share(completion.text, params.repetition_n_grams)

    return repetition


def repeated_share(text: str, n: int) -> float:
    """1 - distinct / all n-grams; 0 for a text of fewer words."""
    words = text.lower().split()
    grams = [tuple(words[k : k + n]) for k in range(len(words) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
