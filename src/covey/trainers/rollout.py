"""One rollout: sample whole groups, score them, and what to report of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from covey.algo.advantages import zero_std_groups
from covey.control.order import stream_indices
from covey.rollout.base import RolloutEngine, Sampling
from covey.types import Group, Prompt, Score

Note = Callable[[str], None]
"""Shows how far a long phase is; may raise StopRequested."""


@dataclass(frozen=True)
class RolloutSettings:
    """Sizes count completions; see plan.batch for their arithmetic."""

    num_generations: int
    prompts_per_rollout: int
    rows_per_step: int
    rows_per_micro_batch: int
    num_iterations: int
    shuffle: bool
    seed: int
    data_seed: int

    @property
    def steps_per_rollout(self) -> int:
        rows = self.prompts_per_rollout * self.num_generations
        return rows // self.rows_per_step * self.num_iterations


@dataclass(frozen=True)
class RolloutParts:
    """What a rollout is made with."""

    prompts: Sequence[Prompt]
    engine: RolloutEngine
    score: Score
    sampling: Sampling
    note: Note


@dataclass(frozen=True)
class Rollout:
    """A scored rollout and what it cost."""

    groups: tuple[Group, ...]
    rollout_s: float
    reward_s: float


def collect(parts: RolloutParts, settings: RolloutSettings, number: int, version: int) -> Rollout:
    """Sample and score rollout ``number``; RuntimeError if the engine answers with other weights than the trainer's."""
    started = time.perf_counter()
    indices = stream_indices(
        len(parts.prompts),
        number * settings.prompts_per_rollout,
        settings.prompts_per_rollout,
        settings.shuffle,
        settings.data_seed,
    )
    prompts = [parts.prompts[i] for i in indices]
    completions = parts.engine.generate(
        prompts,
        settings.num_generations,
        parts.sampling,
        seed=(settings.seed, number),
        progress=lambda done, total: parts.note(f"rollout {done}/{total}"),
    )
    stale = {c.weight_version for group in completions for c in group} - {version}
    if stale:
        raise RuntimeError(f"the engine sampled with weight version {sorted(stale)}, but the trainer is at {version}")
    rolled = time.perf_counter()
    parts.note("rewards")
    owners = [prompt for prompt, group in zip(prompts, completions, strict=True) for _ in group]
    scored = parts.score(owners, [c for group in completions for c in group]).scored
    size = settings.num_generations
    groups = tuple(Group(prompt, tuple(scored[k * size : (k + 1) * size])) for k, prompt in enumerate(prompts))
    return Rollout(groups, rolled - started, time.perf_counter() - rolled)


def reward_metrics(groups: Sequence[Group]) -> dict[str, float | None]:
    """Statistics over all completions of a rollout; ``reward/std`` is their population standard deviation."""
    members = [member for group in groups for member in group.members]
    totals = [m.total for m in members if m.total is not None]
    mean = sum(totals) / len(totals) if totals else None
    metrics: dict[str, float | None] = {
        "reward/mean": mean,
        "reward/std": None if mean is None else math.sqrt(sum((t - mean) ** 2 for t in totals) / len(totals)),
    }
    for name in members[0].rewards:
        metrics[f"reward/{name}"] = _mean([m.rewards[name] for m in members])
    if {"format", "accuracy"} <= members[0].rewards.keys():
        # shows the trap of a format reward: format up, accuracy among well-formed answers down
        metrics["accuracy_when_formatted"] = _mean([m.rewards["accuracy"] for m in members if m.rewards["format"] == 1])
    rewards = torch.tensor([math.nan if m.total is None else m.total for m in members], dtype=torch.float64)
    group_of_row = torch.repeat_interleave(torch.tensor([len(g.members) for g in groups]))
    alone = all(len(group.members) < 2 for group in groups)  # nothing to differ from
    metrics["frac_reward_zero_std"] = None if alone else zero_std_groups(rewards, group_of_row).double().mean().item()
    metrics["completions/mean_length"] = sum(len(m.completion.token_ids) for m in members) / len(members)
    metrics["completions/clipped_ratio"] = sum(m.completion.finish_reason == "length" for m in members) / len(members)
    return metrics


def _mean(values: Sequence[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return sum(given) / len(given) if given else None
