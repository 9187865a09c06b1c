"""How far a correct completion is from the others of its prompt.

    diversity_i = accuracy_i * mean over the others of the group of (1 - cos(e_i, e_j))

with sentence embeddings e. It multiplies the accuracy, as DARLING (arXiv 2509.02534) and DRA-GRPO (2505.09655) do:
added to it, a wrong answer would be paid for being different. DARLING counts the members of another semantic class;
with embeddings in {0, 1} this is the same number. It is a reward of one completion: a bonus that all completions of a
prompt share cancels in the group's baseline.
"""

from __future__ import annotations

from collections.abc import Sequence

from covey.errors import UserError
from covey.rewards.accuracy import build as build_accuracy
from covey.rewards.context import Embed, RewardContext
from covey.rewards.functions import GroupReward, SampleReward
from covey.types import Completion, Prompt


def build(context: RewardContext) -> GroupReward:
    """The reward; UserError without an embedder, or a task that tells right from wrong."""
    if context.embed is None:
        raise UserError("the reward 'diversity' needs a sentence embedder")
    return diversity(build_accuracy(context), context.embed)


def diversity(correct: SampleReward, embed: Embed) -> GroupReward:
    """The same with another judge: ``mine = diversity(my_check, my_embed)`` in a reward file of your own."""

    def score(prompt: Prompt, completions: Sequence[Completion]) -> list[float | None]:
        rewards = [correct(prompt, completion) for completion in completions]
        if not any(rewards):
            return rewards  # nothing to embed: all wrong or not judged
        distances = mean_distances(embed([completion.text for completion in completions]))
        return [None if r is None else r * d for r, d in zip(rewards, distances, strict=True)]

    return GroupReward("diversity", score)


def mean_distances(vectors: Sequence[Sequence[float]]) -> list[float]:
    """For each unit vector the mean of 1 - cosine to the others, within [0, 1]; 0 for a vector alone."""
    others = len(vectors) - 1
    if others < 1:
        return [0.0] * len(vectors)
    total = [sum(column) for column in zip(*vectors, strict=True)]
    # the sum over the others is the product with the sum of all, less the vector's own
    cosines = [sum(a * b for a, b in zip(v, total, strict=True)) - sum(a * a for a in v) for v in vectors]
    return [min(1.0, max(0.0, 1 - cosine / others)) for cosine in cosines]
