"""One rollout: sample whole groups, score them, and what to report of it."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from covey.algo.advantages import zero_std_groups
from covey.control.outcomes import has_variance, is_mixed, one_sided, outcomes
from covey.control.rollouts import RolloutControl, RolloutPlan, joined
from covey.rollout.base import RolloutEngine, Sampling
from covey.types import Group, Prompt, Score

Note = Callable[[str], None]
"""Shows how far a long phase is; may raise StopRequested."""


@dataclass(frozen=True)
class RolloutSettings:
    """Optimizer steps that a rollout serves, and rows (usual ones of a step); see plan.batch for the arithmetic."""

    steps_per_pass: int
    rows_per_step: int
    num_iterations: int
    rows_per_micro_batch: int
    seed: int

    @property
    def steps_per_rollout(self) -> int:
        return self.steps_per_pass * self.num_iterations


@dataclass(frozen=True)
class RolloutParts:
    """What a rollout is made with."""

    prompts: Sequence[Prompt]
    engine: RolloutEngine
    score: Score
    sampling: Sampling
    control: RolloutControl
    note: Note


@dataclass(frozen=True)
class Rollout:
    """A scored rollout and what it cost."""

    groups: tuple[Group, ...]
    """Those to train on."""
    sampled: tuple[Group, ...]
    """All that were sampled now; without remedies the same."""
    stale: bool
    """Some of the groups were sampled by earlier weights."""
    metrics: Mapping[str, float | None]
    events: tuple[str, ...]
    rollout_s: float
    reward_s: float

    @property
    def logged(self) -> tuple[Group, ...]:
        """The groups to train on, then those that were sampled and are not."""
        trained = set(map(id, self.groups))
        return self.groups + tuple(group for group in self.sampled if id(group) not in trained)

    def used(self) -> Rollout:
        """As the later optimizer steps on it see it: it costs and reports nothing more."""
        return replace(self, groups=(), sampled=(), metrics={}, events=(), rollout_s=0.0, reward_s=0.0)


def collect(parts: RolloutParts, settings: RolloutSettings, number: int, version: int) -> Rollout:
    """Sample and score rollout ``number`` as the control decides; RuntimeError if the engine has other weights."""
    control = parts.control
    control.begin(number)
    plan = control.plan()
    sampler = _Sampler(parts, replace(parts.sampling, temperature=plan.temperature), (settings.seed, number), version)
    kept = control.take_carried(plan)
    fresh: list[Group] = []
    indices: list[int] = []
    for _ in range(1 + (control.limits.max_tries if plan.refill else 0)):
        if len(kept) >= plan.prompts:
            break
        taken = control.take(plan, len(kept))
        groups = sampler.groups([parts.prompts[i] for i in taken], plan)
        kept += [group for group in groups if is_mixed(group) or not plan.refill]
        fresh, indices = fresh + groups, indices + taken
    trained, short = control.settle(plan, kept, len(fresh))
    if plan.drop:
        trained = [group for group in trained if has_variance(group)]
    first = [replace(group, members=group.members[: plan.num_generations]) for group in fresh]
    metrics = reward_metrics(first) | control.metrics(plan)
    metrics |= {f"reward_failures/{name}": float(count) for name, count in sampler.failures.items() if count}
    if plan.refill or plan.drop:
        metrics |= {"groups/sampled": float(len(fresh)), "groups/trained": float(len(trained))}
    events = control.observe(plan, indices, first)
    stale = any(m.completion.weight_version != version for group in trained for m in group.members)
    said = tuple(events if short is None else [short, *events])
    return Rollout(tuple(trained), tuple(fresh), stale, metrics, said, sampler.rollout_s, sampler.reward_s)


class _Sampler:
    """Samples and scores groups in the name of one rollout, and adds up the time."""

    def __init__(self, parts: RolloutParts, sampling: Sampling, seed: tuple[int, ...], version: int) -> None:
        self._parts, self._sampling, self._seed, self._version = parts, sampling, seed, version
        self._calls = 0
        self.failures: Counter[str] = Counter()
        self.rollout_s = self.reward_s = 0.0

    def groups(self, prompts: Sequence[Prompt], plan: RolloutPlan) -> list[Group]:
        """One group per prompt; one with a single outcome grows as far as the plan allows."""
        groups = self._sample(prompts, plan.num_generations)
        for _ in range(plan.max_group_size // plan.num_generations - 1):
            short = [k for k, group in enumerate(groups) if outcomes(group) and not is_mixed(group)]
            if not short:
                break
            more = self._sample([groups[k].prompt for k in short], plan.num_generations)
            for k, extra in zip(short, more, strict=True):
                groups[k] = joined(groups[k], extra)
        return groups

    def _sample(self, prompts: Sequence[Prompt], size: int) -> list[Group]:
        started = time.perf_counter()
        seed = self._seed if self._calls == 0 else (*self._seed, self._calls)
        self._calls += 1
        completions = self._parts.engine.generate(
            prompts,
            size,
            self._sampling,
            seed=seed,
            progress=lambda done, total: self._parts.note(f"rollout {done}/{total}"),
        )
        stale = {c.weight_version for group in completions for c in group} - {self._version}
        if stale:
            raise RuntimeError(
                f"the engine sampled with weight version {sorted(stale)}, but the trainer is at {self._version}"
            )
        rolled = time.perf_counter()
        self._parts.note("rewards")
        owners = [prompt for prompt, group in zip(prompts, completions, strict=True) for _ in group]
        batch = self._parts.score(owners, [c for group in completions for c in group])
        scored = batch.scored
        self.failures.update(batch.failures)
        self.rollout_s += rolled - started
        self.reward_s += time.perf_counter() - rolled
        return [Group(p, tuple(scored[k * size : (k + 1) * size])) for k, p in enumerate(prompts)]


def reward_metrics(groups: Sequence[Group]) -> dict[str, float | None]:
    """Statistics over all completions of a rollout; ``reward/std`` is their population standard deviation.

    ``frac_reward_zero_std``: groups without variance; ``frac_all_wrong`` and ``frac_all_right`` tell those by accuracy.
    """
    members = [member for group in groups for member in group.members]
    if not members:
        return {}
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
    if (sides := one_sided(groups)) is not None and not alone:
        metrics["frac_all_wrong"], metrics["frac_all_right"] = sides
    metrics["completions/mean_length"] = sum(len(m.completion.token_ids) for m in members) / len(members)
    metrics["completions/clipped_ratio"] = sum(m.completion.finish_reason == "length" for m in members) / len(members)
    return metrics


def _mean(values: Sequence[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return sum(given) / len(given) if given else None
