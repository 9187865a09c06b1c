"""Format reward: one think block, then one answer block, and nothing else."""

from __future__ import annotations

from covey.rewards.context import RewardContext
from covey.rewards.functions import SampleReward
from covey.tasks.base import ANSWER_CLOSE, ANSWER_OPEN, THINK_CLOSE, THINK_OPEN
from covey.types import Completion, Prompt


def build(context: RewardContext) -> SampleReward:
    """The reward function; the format is the same for every task."""
    return format_reward


def format_reward(prompt: Prompt, completion: Completion) -> float:
    """1.0 when the completion is well formed, else 0.0; the arithmetic inside is not looked at."""
    return 1.0 if is_well_formed(completion.text) else 0.0


def is_well_formed(text: str) -> bool:
    """Whether trimmed text is ``<think>..</think>``, white space, ``<answer>..</answer>`` with a non-blank answer.

    Each tag must occur exactly once (case-sensitive); an empty thought is allowed. Time is linear in the text.
    """
    text = text.strip()
    if any(text.count(tag) != 1 for tag in (THINK_OPEN, THINK_CLOSE, ANSWER_OPEN, ANSWER_CLOSE)):
        return False
    thought, _, rest = text.partition(THINK_CLOSE)
    between, _, tail = rest.partition(ANSWER_OPEN)
    answer, _, after = tail.partition(ANSWER_CLOSE)
    return thought.startswith(THINK_OPEN) and not between.strip() and bool(answer.strip()) and not after
