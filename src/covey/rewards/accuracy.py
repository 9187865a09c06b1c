"""Accuracy reward: the verdict of the task's own verifier."""

from __future__ import annotations

from covey.errors import UserError
from covey.rewards.context import RewardContext
from covey.rewards.functions import SampleReward
from covey.types import Completion, Prompt


def build(context: RewardContext) -> SampleReward:
    """The reward function of a task; UserError when the run has no task to judge answers by."""
    task = context.task
    if task is None:
        raise UserError("the reward 'accuracy' needs a task that can check answers; name one, for example: countdown.")
    verifier = task

    def accuracy(prompt: Prompt, completion: Completion) -> float | None:
        """1.0 or 0.0 (or the task's own partial score); None when the task cannot judge the row."""
        verdict = verifier.verify(completion.text, prompt.columns)
        return None if verdict is None else float(verdict)

    return accuracy
