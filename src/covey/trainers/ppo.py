"""PPO (1707.06347) for language models: a critic gives every token its own advantage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.algo.advantages import whiten
from covey.algo.gae import ValueObjective, adaptive_lambda, gae, token_rewards
from covey.algo.kl import k1
from covey.algo.metrics import merge_metrics
from covey.algo.weights import AggregationParams, aggregation_weights
from covey.backends.base import ValueBackend
from covey.tensors import TokenBatch
from covey.trainers.credit import shown_advantages
from covey.trainers.policy import (
    PolicyParts,
    PolicySettings,
    chosen_tokens,
    finish_step,
    passes_over,
    rollout_batch,
)
from covey.trainers.rollout import collect
from covey.trainers.schedule import Schedule
from covey.types import StepResult


@dataclass(frozen=True)
class CriticSettings:
    """How values become advantages, and what the critic learns from."""

    gamma: float
    lam: float
    lam_value: float
    """Lambda of the critic's targets; 1: the rewards still to come."""
    length_adaptive_alpha: float | None
    """VAPO: lambda of the policy from the length of the completion instead of ``lam``."""
    whiten: bool
    clip: float
    warmup_steps: int
    """Optimizer steps at the start that train the critic only."""


@dataclass(frozen=True)
class PPOSettings:
    """What every policy-gradient method has, and the critic."""

    policy: PolicySettings
    critic: CriticSettings


@dataclass(frozen=True)
class PPOParts:
    """The objects a step works with; engine, backend and critic hold state."""

    policy: PolicyParts
    critic: ValueBackend
    schedule: Schedule
    """Of the critic's learning rate."""


def ppo_step(parts: PPOParts, settings: PPOSettings, step: int) -> Iterator[StepResult]:
    """One rollout after optimizer step ``step`` and every optimizer step taken on it, of the critic and the policy."""
    policy, sizes = settings.policy, settings.policy.rollout
    actor = parts.policy
    number, done = divmod(step, sizes.steps_per_rollout)
    rollout = collect(actor.rollout, sizes, number, version=step)
    started = time.perf_counter()
    batch = with_values(rollout_batch(rollout, actor, policy), parts, settings)
    advantages = shown_advantages(batch, rollout.logged)
    for item in passes_over(batch, rollout.groups, actor, policy)[done:]:
        policy_step = step + 1 - settings.critic.warmup_steps
        rows = chosen_tokens(item.rows, actor, policy, step, rollout.stale) if policy_step > 0 else item.rows
        # from here on nothing can be stopped: a checkpoint holds both after the step, or both before it
        actor.rollout.note(f"update {step + 1}")
        critic_lr = parts.schedule(step + 1)
        objective = ValueObjective(settings.critic.clip)
        critic = parts.critic.update(value_rows(item.part).split(sizes.rows_per_micro_batch), objective, critic_lr)
        stats, lr = None, None
        if policy_step > 0:
            lr = actor.schedule(policy_step)
            stats = actor.backend.update(rows.split(sizes.rows_per_micro_batch), actor.current(rollout.stale), lr)
        step += 1
        actor.rollout.engine.load_weights(actor.backend.named_weights(), version=step)
        seconds = time.perf_counter() - started
        metrics, said = finish_step(rollout, item, stats, lr, actor, seconds, actor.holds(policy, step))
        metrics |= merge_metrics([critic.metrics]) | {
            "value/loss": critic.loss,
            "value/grad_norm": critic.grad_norm,
            "value/update_skipped": float(not critic.applied),
            "value/lr": critic_lr,
        }
        yield StepResult(step, metrics, rollout.logged, advantages, said)
        rollout = rollout.used()
        started = time.perf_counter()


def with_values(batch: TokenBatch, parts: PPOParts, settings: PPOSettings) -> TokenBatch:
    """The critic's values before the rollout is trained on, its targets, and the advantages of the policy.

    Rewards are the score on the last token and, if the KL term is part of the reward, minus its k1 on every token. The
    advantages are whitened over all trained tokens of the rollout, after the targets were taken from them.
    """
    assert batch.rewards is not None
    critic = settings.critic
    parts.policy.rollout.note("values")
    values = parts.critic.values(batch.split(settings.policy.rollout.rows_per_micro_batch))
    kl: Tensor | None = None
    if weight := parts.policy.reward_kl(settings.policy):
        assert batch.old_logprobs is not None and batch.ref_logprobs is not None
        kl = weight * k1(batch.old_logprobs, batch.ref_logprobs, None)
    rewards = token_rewards(batch.rewards.nan_to_num(0.0).float(), kl, batch.lens)
    targets = gae(rewards, values, batch.lens, critic.gamma, critic.lam_value) + values
    lam: float | Tensor = critic.lam
    if critic.length_adaptive_alpha is not None:
        lam = adaptive_lambda(batch.lens, critic.length_adaptive_alpha).float()
    advantages = gae(rewards, values, batch.lens, critic.gamma, lam)
    if critic.whiten:
        advantages = whiten(advantages, batch.mask)
    return batch.with_fields(advantages=advantages, old_values=values, returns=targets)


def value_rows(part: TokenBatch) -> TokenBatch:
    """The rows of an optimizer step as the critic sees them: the mean over all trained tokens."""
    weights = aggregation_weights(part.mask, part.lens, "token-mean", AggregationParams())
    rows = torch.zeros(part.num_rows).index_add_(0, part.row_of_token, weights).nonzero().squeeze(1)
    return part.with_fields(weights=weights).select_rows(rows.tolist())
