"""GRPO (2402.03300): one rollout of whole groups, then the optimizer steps it is used for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from covey.trainers.credit import AdvantageSettings, shown_advantages, with_advantages
from covey.trainers.policy import (
    PolicyParts,
    PolicySettings,
    chosen_tokens,
    finish_step,
    passes_over,
    rollout_batch,
)
from covey.trainers.rollout import collect
from covey.types import StepResult


@dataclass(frozen=True)
class GRPOSettings:
    """What every policy-gradient method has, and how rewards become advantages."""

    policy: PolicySettings
    advantages: AdvantageSettings


def grpo_step(parts: PolicyParts, settings: GRPOSettings, step: int) -> Iterator[StepResult]:
    """One rollout after optimizer step ``step`` and every optimizer step taken on it.

    After a stop inside a rollout it is sampled anew, from the present weights, for the steps that are left of it.
    """
    policy = settings.policy
    number, done = divmod(step, policy.rollout.steps_per_rollout)
    rollout = collect(parts.rollout, policy.rollout, number, version=step)
    started = time.perf_counter()
    batch = rollout_batch(rollout, parts, policy)
    batch = with_advantages(batch, rollout.groups, settings.advantages, parts.reward_kl(policy))
    advantages = shown_advantages(batch, rollout.logged)
    for item in passes_over(batch, rollout.groups, parts, policy)[done:]:
        rows = chosen_tokens(item.rows, parts, policy, step, rollout.stale)
        lr = parts.schedule(step + 1)
        parts.rollout.note(f"update {step + 1}")
        stats = parts.backend.update(rows.split(policy.rollout.rows_per_micro_batch), parts.current(rollout.stale), lr)
        step += 1
        parts.rollout.engine.load_weights(parts.backend.named_weights(), version=step)
        seconds = time.perf_counter() - started
        metrics, said = finish_step(rollout, item, stats, lr, parts, seconds, parts.holds(policy, step))
        yield StepResult(step, metrics, rollout.logged, advantages, said)
        rollout = rollout.used()
        started = time.perf_counter()
