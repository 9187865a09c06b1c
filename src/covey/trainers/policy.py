"""What GRPO and PPO do alike with the rows of an optimizer step: weights, log-probs, corrections, chosen tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from covey.algo.metrics import Metrics, merge_metrics
from covey.algo.objective import Objective
from covey.algo.weights import AggregationParams, aggregation_weights
from covey.backends.base import TrainBackend, UpdateStats
from covey.control.coefficients import Coefficients
from covey.tensors import TokenBatch
from covey.trainers.credit import CreditSettings, corrected, is_correct, pack, select_tokens, with_positive_nll
from covey.trainers.rollout import Rollout, RolloutParts, RolloutSettings
from covey.trainers.schedule import Schedule
from covey.types import Group


@dataclass(frozen=True)
class PolicySettings:
    """A rollout, what its tokens are credited with besides the advantage, and the denominator of the loss."""

    rollout: RolloutSettings
    credit: CreditSettings
    aggregation: str


@dataclass(frozen=True)
class PolicyParts:
    """The objects a step works with; engine, backend and coefficients hold state."""

    rollout: RolloutParts
    backend: TrainBackend
    objective: Objective
    """With the coefficients that the run starts with; see ``current``."""
    schedule: Schedule
    coefficients: Coefficients

    def current(self, stale: bool = False) -> Objective:
        """The objective of the next optimizer step; not on-policy where rows are ``stale``."""
        moving = self.coefficients
        beta = moving.kl.beta if self.objective.beta else 0.0
        entropy_coef = self.objective.entropy_coef if moving.entropy is None else moving.entropy.weight
        on_policy = self.objective.on_policy and not stale
        return replace(self.objective, beta=beta, entropy_coef=entropy_coef, on_policy=on_policy)

    def holds(self, settings: PolicySettings, step: int) -> bool:
        """Whether beta is still that of the reward after optimizer step ``step``: its rollout goes on."""
        return settings.credit.kl_in_reward and step % settings.rollout.steps_per_rollout != 0

    def reward_kl(self, settings: PolicySettings) -> float:
        """The weight of a KL term that is part of the reward; 0: there is none."""
        return self.coefficients.kl.beta if settings.credit.kl_in_reward else 0.0

    @property
    def needs_every_row(self) -> bool:
        """A row of advantage 0 has a gradient, or may get one while the rollout is used."""
        return self.objective.needs_every_row or self.coefficients.entropy is not None


def rollout_batch(rollout: Rollout, parts: PolicyParts, settings: PolicySettings) -> TokenBatch:
    """A rollout without advantages yet, but with the log-probs of a KL term that is part of the reward.

    Groups carried over from an earlier rollout keep the log-probs they were sampled with as the old ones.
    """
    batch = pack(rollout.groups, settings.credit.overlong_filter)
    if settings.credit.kl_in_reward or rollout.stale:
        batch = with_logprobs(batch, parts, settings, old=rollout.stale)
    if rollout.stale:
        assert batch.old_logprobs is not None
        newest = parts.rollout.engine.weight_version
        members = [member for group in rollout.groups for member in group.members]
        carried = torch.tensor([m.completion.weight_version != newest for m in members])
        of_token = carried.repeat_interleave(batch.lens)
        batch = batch.with_fields(old_logprobs=torch.where(of_token, batch.rollout_logprobs, batch.old_logprobs))
    return batch


@dataclass(frozen=True)
class Pass:
    """One optimizer step on a rollout."""

    part: TokenBatch
    """All of its rows."""
    rows: TokenBatch
    """Those that are trained, with everything the objective reads."""
    metrics: Metrics


def passes_over(batch: TokenBatch, groups: Sequence[Group], parts: PolicyParts, settings: PolicySettings) -> list[Pass]:
    """Every optimizer step that a rollout serves, in order.

    Every denominator is fixed here, over all rows of an optimizer step, before the first forward pass.
    """
    steps = optimizer_steps(batch, groups, parts, settings)
    passes = [Pass(part, *corrected_rows(part, parts, settings)) for part in steps]
    return passes * settings.rollout.num_iterations


def optimizer_steps(
    batch: TokenBatch, groups: Sequence[Group], parts: PolicyParts, settings: PolicySettings
) -> list[TokenBatch]:
    """The rows of each optimizer step of a rollout, weighed, with the likelihood term of its correct completions.

    A rollout always counts as the same number of steps, of which some may have no rows.
    """
    coef = settings.credit.positive_nll_coef
    bounds = step_bounds(batch.num_rows, settings.rollout)
    steps = [weigh(batch.select_rows(rows), parts, settings) for rows in bounds]
    share = prompt_shares(batch)
    if share is not None and settings.aggregation != "prompt-mean-token-mean":
        steps = [shared_evenly(part, share[rows.start : rows.stop]) for part, rows in zip(steps, bounds, strict=True)]
    if not coef:
        return steps
    correct = torch.tensor([float(is_correct(member)) for group in groups for member in group.members])
    return [
        with_positive_nll(part, correct[rows.start : rows.stop], coef)
        for part, rows in zip(steps, bounds, strict=True)
    ]


def step_bounds(num_rows: int, settings: RolloutSettings) -> list[range]:
    """Which rows each optimizer step of a pass takes: as even as they go.

    A rollout that came out short serves fewer steps, not smaller ones; the others have no rows.
    """
    usual, count = settings.rows_per_step, settings.steps_per_pass
    filled = min(count, max(1, -(-num_rows // usual)))
    cuts = [num_rows * k // filled for k in range(filled + 1)]
    return [range(low, high) for low, high in pairwise(cuts)] + [range(num_rows, num_rows)] * (count - filled)


def prompt_shares(batch: TokenBatch) -> torch.Tensor | None:
    """[R] 1 / trained rows of the prompt, where groups have different sizes; None where they don't."""
    if batch.num_rows == 0:
        return None
    sizes = torch.bincount(batch.group_of_row, minlength=batch.num_groups)
    if bool((sizes == sizes[0]).all()):
        return None
    trained = torch.zeros(batch.num_rows).index_add_(0, batch.row_of_token, batch.mask).gt(0).float()
    counts = torch.zeros(batch.num_groups).index_add_(0, batch.group_of_row, trained)
    return 1.0 / counts.clamp(min=1)[batch.group_of_row]


def shared_evenly(part: TokenBatch, share: torch.Tensor) -> TokenBatch:
    """The weights times ``share`` [R], with the same sum as before: only who has how much say of it changes."""
    weights = part.weights * share.repeat_interleave(part.lens)
    total = weights.sum()
    return part.with_fields(weights=weights * (part.weights.sum() / total) if total > 0 else weights)


def weigh(part: TokenBatch, parts: PolicyParts, settings: PolicySettings) -> TokenBatch:
    """The rows of one optimizer step with their aggregation weights."""
    params = AggregationParams(parts.rollout.sampling.max_new_tokens, settings.rollout.rows_per_micro_batch)
    weights = aggregation_weights(part.mask, part.lens, settings.aggregation, params, group_of_row=part.group_of_row)
    return part.with_fields(weights=weights)


def corrected_rows(part: TokenBatch, parts: PolicyParts, settings: PolicySettings) -> tuple[TokenBatch, Metrics]:
    """The rows that have a gradient, with the log-probs they need and corrected for the engine's."""
    whole = settings.credit.selects_tokens or parts.needs_every_row
    rows = part if whole else useful_rows(part)
    return corrected(with_logprobs(rows, parts, settings), settings.credit.correction)


def with_logprobs(
    part: TokenBatch, parts: PolicyParts, settings: PolicySettings, old: bool = False
) -> TokenBatch:
    """Old and reference log-probs, where something (or ``old``) asks for them and they are not there yet."""
    if part.num_rows == 0:
        return part
    in_reward = settings.credit.kl_in_reward
    reads_old = old or parts.objective.reads_old or settings.credit.correction is not None or in_reward
    micros = part.split(settings.rollout.rows_per_micro_batch)
    if part.old_logprobs is None and reads_old:
        parts.rollout.note("old log-probs")
        part = part.with_fields(old_logprobs=parts.backend.logprobs(micros)[0])
    if part.ref_logprobs is None and (parts.objective.reads_ref or in_reward):
        parts.rollout.note("reference log-probs")
        part = part.with_fields(ref_logprobs=parts.backend.logprobs(micros, reference=True)[0])
    return part


def chosen_tokens(
    rows: TokenBatch, parts: PolicyParts, settings: PolicySettings, step: int, stale: bool
) -> TokenBatch:
    """Which tokens the optimizer step after ``step`` trains, if that is a choice; costs a forward pass."""
    if not settings.credit.selects_tokens or rows.num_rows == 0:
        return rows
    parts.rollout.note("choosing tokens")
    micros = rows.split(settings.rollout.rows_per_micro_batch)
    logp, entropy = parts.backend.logprobs(micros, with_entropy=True)
    assert entropy is not None
    seed = settings.rollout.seed + step
    return select_tokens(rows, logp, entropy, settings.credit, parts.current(stale).on_policy, seed)


def useful_rows(part: TokenBatch) -> TokenBatch:
    """The rows that have a gradient of their own: those of advantage 0 or weight 0 have none."""
    per_token = (part.advantages * part.weights).abs()
    if part.nll_weights is not None:
        per_token = per_token + part.nll_weights
    counts = torch.zeros(part.num_rows).index_add_(0, part.row_of_token, per_token)
    return part.select_rows(counts.nonzero().squeeze(1).tolist())


def finish_step(
    rollout: Rollout,
    done: Pass,
    stats: UpdateStats | None,
    lr: float | None,
    parts: PolicyParts,
    train_s: float,
    hold: bool,
) -> tuple[dict[str, float | None], tuple[str, ...]]:
    """The metric line of an optimizer step, and what its coefficients, which move now, have to say.

    ``stats`` and ``lr`` are None where the policy took no step. ``time/train_s`` includes old and reference log-probs;
    ``tokens_per_s`` counts the completion tokens of the step. Reward metrics appear on the first step of a rollout
    only. ``hold``: see ``Coefficients.observe``.
    """
    step_s = rollout.rollout_s + rollout.reward_s + train_s
    moving = parts.coefficients
    metrics: dict[str, float | None] = {
        "kl": None,
        "clip_ratio": None,
        "entropy": None,
        **merge_metrics([done.metrics] if stats is None else [stats.metrics, done.metrics]),
        "loss": None if stats is None else stats.loss,
        "beta": moving.kl.beta,
        "grad_norm": None if stats is None else stats.grad_norm,
        "update_skipped": None if stats is None else float(not stats.applied),
        "lr": lr,
        "time/rollout_s": rollout.rollout_s,
        "time/reward_s": rollout.reward_s,
        "time/train_s": train_s,
        "time/step_s": step_s,
        "tokens_per_s": done.part.num_tokens / step_s,
    }
    if moving.entropy is not None:
        metrics["entropy_coef"] = moving.entropy.weight
    # log-probs at a raised temperature are those of another distribution: they say nothing of how far the policy went
    as_usual = bool((done.part.temperatures == parts.rollout.sampling.temperature).all())
    said: tuple[str, ...] = ()
    if stats is not None and as_usual:
        said = moving.observe(metrics["kl"], metrics["entropy"], done.part.num_rows, hold)
    return {**metrics, **rollout.metrics}, (*rollout.events, *said)
