"""Rewards of your own, in a file of your own; nothing has to be registered.

    covey rlhf --rlhf_type grpo --model smollm2-135m --dataset countdown --external_plugins examples/own_reward.py \
        --reward_funcs short_answer accuracy --reward_weights 0.1 1.0

Every public function of the file can be named. A function with the parameter `completions` is called once per batch
with lists; any other is called once per completion. None means "does not apply here", which is not the same as 0.
"""

from __future__ import annotations

from typing import Any

from covey.types import Completion, Prompt


def short_answer(prompt: Prompt, completion: Completion) -> float:
    """1 for an empty completion, falling to 0 at 200 tokens. Only sensible beside a reward for being right."""
    return max(0.0, 1.0 - len(completion.token_ids) / 200)


def uses_the_numbers(completions: list[str], nums: list[list[int]], **columns: Any) -> list[float]:
    """Share of the puzzle's numbers that occur in the completion; `nums` is a column of the data, row by row."""
    return [
        sum(str(number) in text for number in numbers) / len(numbers)
        for text, numbers in zip(completions, nums, strict=True)
    ]
