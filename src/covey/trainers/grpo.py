"""GRPO (2402.03300): one rollout of whole groups, then the optimizer steps it is used for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from covey.algo.advantages import Scale, group_advantages, zero_std_groups
from covey.algo.masks import truncation_mask
from covey.algo.metrics import merge_metrics
from covey.algo.objective import Objective
from covey.algo.weights import AggregationParams, aggregation_weights
from covey.backends.base import TrainBackend, UpdateStats
from covey.rollout.base import RolloutEngine, Sampling
from covey.tensors import TokenBatch, make_batch
from covey.trainers.order import stream_indices
from covey.trainers.schedule import Schedule
from covey.types import Group, Prompt, Score, StepResult

Note = Callable[[str], None]
"""Shows how far a long phase is; may raise StopRequested."""


@dataclass(frozen=True)
class GRPOSettings:
    """Sizes count completions; see plan.batch for their arithmetic."""

    num_generations: int
    prompts_per_rollout: int
    rows_per_step: int
    rows_per_micro_batch: int
    num_iterations: int
    advantage_estimator: str
    scale_rewards: Scale
    aggregation: str
    overlong_filter: bool
    shuffle: bool
    seed: int
    data_seed: int

    @property
    def steps_per_rollout(self) -> int:
        rows = self.prompts_per_rollout * self.num_generations
        return rows // self.rows_per_step * self.num_iterations


@dataclass(frozen=True)
class GRPOParts:
    """The objects a step works with; only engine and backend hold state."""

    prompts: Sequence[Prompt]
    engine: RolloutEngine
    backend: TrainBackend
    score: Score
    objective: Objective
    sampling: Sampling
    schedule: Schedule
    note: Note


@dataclass(frozen=True)
class Rollout:
    """A scored rollout and what it cost."""

    groups: tuple[Group, ...]
    rollout_s: float
    reward_s: float


def grpo_step(parts: GRPOParts, settings: GRPOSettings, step: int) -> Iterator[StepResult]:
    """One rollout after optimizer step ``step`` and every optimizer step taken on it.

    After a stop inside a rollout it is sampled anew, from the present weights, for the steps that are left of it.
    """
    number, done = divmod(step, settings.steps_per_rollout)
    rollout = collect(parts, settings, number, version=step)
    started = time.perf_counter()
    batch, advantages = assemble(rollout.groups, settings)
    # every denominator is fixed here, over all rows of an optimizer step, before the first forward pass
    minibatches = [weigh(part, parts, settings) for part in batch.split(settings.rows_per_step)]
    trained = [with_logprobs(useful_rows(part, parts.objective), parts, settings) for part in minibatches]
    passes = list(zip(minibatches, trained, strict=True)) * settings.num_iterations
    for part, rows in passes[done:]:
        micros = rows.split(settings.rows_per_micro_batch)
        lr = parts.schedule(step + 1)
        parts.note(f"update {step + 1}")
        stats = parts.backend.update(micros, parts.objective, lr)
        step += 1
        parts.engine.load_weights(parts.backend.named_weights(), version=step)
        train_s = time.perf_counter() - started
        metrics = step_metrics(rollout, part, stats, parts.objective.beta, lr, train_s)
        yield StepResult(step, metrics, rollout.groups, advantages)
        rollout = replace(rollout, groups=(), rollout_s=0.0, reward_s=0.0)
        started = time.perf_counter()


def collect(parts: GRPOParts, settings: GRPOSettings, number: int, version: int) -> Rollout:
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


def assemble(groups: Sequence[Group], settings: GRPOSettings) -> tuple[TokenBatch, list[list[float | None]]]:
    """Pack the groups with their advantages (weights still 0); also the advantages per group for the log."""
    members = [member for group in groups for member in group.members]
    batch = make_batch(
        [group.prompt.token_ids for group in groups],
        [[member.completion.token_ids for member in group.members] for group in groups],
    )
    rewards = torch.tensor([math.nan if m.total is None else m.total for m in members], dtype=torch.float64)
    advantages = group_advantages(
        rewards, batch.group_of_row, estimator=settings.advantage_estimator, scale=settings.scale_rewards
    ).float()
    unscored = rewards.isnan().repeat_interleave(batch.lens)
    mask = batch.mask.masked_fill(unscored, 0.0)
    if settings.overlong_filter:
        mask = mask * truncation_mask([m.completion.finish_reason for m in members], batch.lens)
    batch = batch.with_fields(
        mask=mask,
        advantages=advantages.repeat_interleave(batch.lens),
        rollout_logprobs=torch.tensor([lp for m in members for lp in m.completion.logprobs]),
    )
    values = iter(advantages.tolist())
    shown = [[None if m.total is None else a for m, a in zip(g.members, values, strict=False)] for g in groups]
    return batch, shown


def weigh(part: TokenBatch, parts: GRPOParts, settings: GRPOSettings) -> TokenBatch:
    """The rows of one optimizer step with their aggregation weights."""
    params = AggregationParams(
        max_completion_length=parts.sampling.max_new_tokens, rows_per_micro_batch=settings.rows_per_micro_batch
    )
    return part.with_fields(weights=aggregation_weights(part.mask, part.lens, settings.aggregation, params))


def with_logprobs(part: TokenBatch, parts: GRPOParts, settings: GRPOSettings) -> TokenBatch:
    """Old and reference log-probs, computed only if the objective reads them."""
    if part.num_rows == 0:
        return part
    old: Tensor | None = None
    ref: Tensor | None = None
    micros = part.split(settings.rows_per_micro_batch)
    if parts.objective.reads_old:
        parts.note("old log-probs")
        old = torch.cat(parts.backend.logprobs(micros))
    if parts.objective.reads_ref:
        parts.note("reference log-probs")
        ref = torch.cat(parts.backend.logprobs(micros, reference=True))
    return part.with_fields(old_logprobs=old, ref_logprobs=ref)


def useful_rows(part: TokenBatch, objective: Objective) -> TokenBatch:
    """The rows that have a gradient: without a KL term, a row of advantage 0 or weight 0 has none and is skipped."""
    if objective.reads_ref:
        return part
    counts = torch.zeros(part.num_rows).index_add_(0, part.row_of_token, (part.advantages * part.weights).abs())
    return part.select_rows(counts.nonzero().squeeze(1).tolist())


def step_metrics(
    rollout: Rollout, part: TokenBatch, stats: UpdateStats, beta: float, lr: float, train_s: float
) -> dict[str, float | None]:
    """The metric line of the optimizer step on ``part``; reward metrics appear on the first step of a rollout only.

    ``time/train_s`` includes old and reference log-probs; ``tokens_per_s`` counts the completion tokens of the step.
    """
    step_s = rollout.rollout_s + rollout.reward_s + train_s
    metrics: dict[str, float | None] = {
        "kl": None,
        "clip_ratio": None,
        "entropy": None,
        **merge_metrics([stats.metrics]),
        "loss": stats.loss,
        "beta": beta,
        "grad_norm": stats.grad_norm,
        "update_skipped": float(not stats.applied),
        "lr": lr,
        "time/rollout_s": rollout.rollout_s,
        "time/reward_s": rollout.reward_s,
        "time/train_s": train_s,
        "time/step_s": step_s,
        "tokens_per_s": part.num_tokens / step_s,
    }
    return metrics | (reward_metrics(rollout.groups) if rollout.groups else {})


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
    metrics["frac_reward_zero_std"] = zero_std_groups(rewards, group_of_row).double().mean().item()
    metrics["completions/mean_length"] = sum(len(m.completion.token_ids) for m in members) / len(members)
    metrics["completions/clipped_ratio"] = sum(m.completion.finish_reason == "length" for m in members) / len(members)
    return metrics


def _mean(values: Sequence[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return sum(given) / len(given) if given else None
