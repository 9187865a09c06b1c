"""Calls the rewards of a run on a batch of completions and sums them by weight."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from covey.rewards.functions import RewardFunction, validated, with_prefix
from covey.types import Completion, Prompt, Scored

_LOG = logging.getLogger("covey.rewards")


@dataclass(frozen=True, slots=True)
class RewardStats:
    """What one reward did in one batch. ``n`` rows got a score; ``mean`` is over these, None when there are none."""

    mean: float | None
    n: int
    abstained: int
    """Rows for which the function returned None: it does not apply there."""
    failed: int
    """Rows for which it returned NaN or an infinity; treated like None, and never silently."""


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """Scores in the order of the completions, statistics per reward name, rows that no reward scored."""

    scored: tuple[Scored, ...]
    stats: Mapping[str, RewardStats]
    unscored: int


@dataclass(frozen=True, slots=True)
class RewardSet:
    """The rewards of a run and their weights, e.g. format 0.4 and accuracy 0.6. Holds no state."""

    functions: tuple[RewardFunction, ...]
    weights: tuple[float, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Metric names, one per reward, all distinct."""
        return tuple(function.name for function in self.functions)

    def score(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> ScoredBatch:
        """Score row-aligned prompts and completions (a prompt is repeated for each of its completions).

        A total is the weighted sum over the rewards that gave the row a score, None when none did. RewardError when a
        function raises or does not return one score per completion.
        """
        if len(prompts) != len(completions):
            raise ValueError(f"{len(prompts)} prompts for {len(completions)} completions")
        seen = [with_prefix(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
        columns: dict[str, list[float | None]] = {}
        stats: dict[str, RewardStats] = {}
        for function in self.functions:
            scores, failed = validated(function.name, function(prompts, seen), len(seen))
            columns[function.name] = scores
            stats[function.name] = _stats(scores, failed)
        scored = tuple(
            Scored(completion, rewards, self._total(rewards))
            for row, completion in enumerate(completions)
            for rewards in ({name: scores[row] for name, scores in columns.items()},)
        )
        unscored = sum(item.total is None for item in scored)
        _warn(stats, unscored, len(scored))
        return ScoredBatch(scored, stats, unscored)

    def _total(self, rewards: Mapping[str, float | None]) -> float | None:
        terms = [
            weight * score for weight, score in zip(self.weights, rewards.values(), strict=True) if score is not None
        ]
        return sum(terms) if terms else None


def _stats(scores: Sequence[float | None], failed: int) -> RewardStats:
    given = [score for score in scores if score is not None]
    mean = sum(given) / len(given) if given else None
    return RewardStats(mean, len(given), len(scores) - len(given) - failed, failed)


def _warn(stats: Mapping[str, RewardStats], unscored: int, rows: int) -> None:
    failures = [f"{name}: {stat.failed} NaN or infinite" for name, stat in stats.items() if stat.failed]
    if failures or unscored:
        notes = failures + ([f"{unscored} of {rows} completions got no score and are left out"] if unscored else [])
        _LOG.warning("rewards: %s", "; ".join(notes))
