"""Accuracy and format rate of an engine on prompts, scored by the same functions as in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from covey.evals.stats import wilson_interval
from covey.rollout.base import Progress, RolloutEngine, Sampling
from covey.types import Group, Prompt, Score, Scored


@dataclass(frozen=True)
class EvalResult:
    """Rates over all completions; None where no completion was judged. Intervals are 95% Wilson intervals."""

    n: int
    accuracy: float | None
    accuracy_interval: tuple[float, float] | None
    format: float | None
    format_interval: tuple[float, float] | None
    accuracy_when_formatted: float | None
    mean_length: float
    clipped_ratio: float
    judged: int
    """Completions with an accuracy; the others have none because a reward abstained, or failed."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for json."""
        return {
            "accuracy": self.accuracy,
            "accuracy_interval": None if self.accuracy_interval is None else list(self.accuracy_interval),
            "format": self.format,
            "format_interval": None if self.format_interval is None else list(self.format_interval),
            "accuracy_when_formatted": self.accuracy_when_formatted,
            "mean_length": self.mean_length,
            "clipped_ratio": self.clipped_ratio,
            "n": self.n,
            "judged": self.judged,
        }


def evaluate(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    samples_per_prompt: int,
    sampling: Sampling,
    score: Score,
    *,
    seed: tuple[int, ...],
    progress: Progress | None = None,
) -> tuple[EvalResult, list[Group]]:
    """Sample every prompt ``samples_per_prompt`` times and score it; the result and the scored completions."""
    completions = engine.generate(prompts, samples_per_prompt, sampling, seed=seed, progress=progress)
    owners = [prompt for prompt, group in zip(prompts, completions, strict=True) for _ in group]
    scored = score(owners, [c for group in completions for c in group]).scored
    size = samples_per_prompt
    groups = [Group(p, tuple(scored[k * size : (k + 1) * size])) for k, p in enumerate(prompts)]
    return summarize(scored), groups


def summarize(scored: Sequence[Scored]) -> EvalResult:
    """The result over scored completions; rewards named ``accuracy`` and ``format`` are read, a score of 1 is a hit."""
    accuracy, accuracy_interval = _rate([item.rewards.get("accuracy") for item in scored])
    form, form_interval = _rate([item.rewards.get("format") for item in scored])
    formatted = [item.rewards.get("accuracy") for item in scored if item.rewards.get("format") == 1]
    return EvalResult(
        n=len(scored),
        judged=sum(item.rewards.get("accuracy") is not None for item in scored),
        accuracy=accuracy,
        accuracy_interval=accuracy_interval,
        format=form,
        format_interval=form_interval,
        accuracy_when_formatted=_rate(formatted)[0],
        mean_length=sum(len(item.completion.token_ids) for item in scored) / len(scored),
        clipped_ratio=sum(item.completion.finish_reason == "length" for item in scored) / len(scored),
    )


def _rate(values: Sequence[float | None]) -> tuple[float | None, tuple[float, float] | None]:
    given = [value for value in values if value is not None]
    if not given:
        return None, None
    hits = sum(value == 1 for value in given)
    return hits / len(given), wilson_interval(hits, len(given))
