"""From scored groups to a batch that can be trained on: masks, advantages, corrections, chosen tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.algo.advantages import ADVANTAGE_ESTIMATORS, gdpo_advantages, group_advantages, whiten
from covey.algo.corrections import importance_weights
from covey.algo.kl import k1
from covey.algo.losses.base import LossInputs
from covey.algo.masks import truncation_mask
from covey.algo.metrics import Metrics
from covey.algo.segments import segment_sum, sum_to_come
from covey.algo.selection import top_entropy
from covey.tensors import TokenBatch, make_batch
from covey.types import Group, Scored

Marks = Callable[[LossInputs, int], Tensor]
"""(tokens of an optimizer step, seed) -> [N] bool, the tokens that the loss treats apart."""


@dataclass(frozen=True)
class Correction:
    """How completions of an engine that differs from the trainer are weighed; see ``algo.corrections``."""

    mode: str
    low: float
    high: float


@dataclass(frozen=True)
class AdvantageSettings:
    """How rewards become advantages within groups."""

    estimator: str
    scale: str
    """A name of SCALES, or ``gdpo``: each reward on its own."""
    reward_weights: tuple[float, ...]


@dataclass(frozen=True)
class CreditSettings:
    """What decides, beside the advantage, how much a token counts."""

    kl_in_reward: bool
    """There is a KL term, and it is part of the reward."""
    overlong_filter: bool
    correction: Correction | None
    top_entropy_quantile: float
    marks: Marks | None
    positive_nll_coef: float

    @property
    def selects_tokens(self) -> bool:
        """The choice is made over all tokens of an optimizer step, with the policy as it is before that step."""
        return self.top_entropy_quantile < 1 or self.marks is not None


def pack(groups: Sequence[Group], overlong_filter: bool) -> TokenBatch:
    """The completions as a batch: tokens, rewards, and a mask without rows nobody scored (and truncated ones)."""
    members = [member for group in groups for member in group.members]
    batch = make_batch(
        [group.prompt.token_ids for group in groups],
        [[member.completion.token_ids for member in group.members] for group in groups],
    )
    rewards = torch.tensor([math.nan if m.total is None else m.total for m in members], dtype=torch.float64)
    mask = batch.mask.masked_fill(rewards.isnan().repeat_interleave(batch.lens), 0.0)
    if overlong_filter:
        mask = mask * truncation_mask([m.completion.finish_reason for m in members], batch.lens)
    return batch.with_fields(
        mask=mask,
        rewards=rewards,
        rollout_logprobs=torch.tensor([lp for m in members for lp in m.completion.logprobs]),
        temperatures=torch.tensor([m.completion.temperature for m in members]),
    )


def with_advantages(
    batch: TokenBatch, groups: Sequence[Group], settings: AdvantageSettings, kl_in_reward: float = 0.0
) -> TokenBatch:
    """The advantage of every token, from whole groups; a KL term in the reward reads old and reference log-probs."""
    if batch.num_rows == 0:
        return batch
    estimator = ADVANTAGE_ESTIMATORS[settings.estimator]
    assert batch.rewards is not None
    rewards, kl = batch.rewards, None
    if kl_in_reward:
        assert batch.old_logprobs is not None and batch.ref_logprobs is not None
        kl = kl_in_reward * k1(batch.old_logprobs, batch.ref_logprobs, None)
        if not estimator.kl_to_come:
            rewards = rewards - segment_sum(kl.double(), batch.row_of_token, batch.num_rows)
    if settings.scale == "gdpo":
        table = torch.tensor(
            [[math.nan if r is None else r for r in m.rewards.values()] for g in groups for m in g.members],
            dtype=torch.float64,
        )
        of_row = gdpo_advantages(table, torch.tensor(settings.reward_weights).double(), batch.group_of_row)
    else:
        of_row = group_advantages(rewards, batch.group_of_row, settings.estimator, settings.scale, lens=batch.lens)
    advantages = of_row.float().repeat_interleave(batch.lens)
    if kl is not None and estimator.kl_to_come:
        advantages = advantages - sum_to_come(kl, torch.ones_like(kl), batch.lens)
    if estimator.whitens:
        advantages = whiten(advantages, batch.mask)
    return batch.with_fields(advantages=advantages)


def shown_advantages(batch: TokenBatch, groups: Sequence[Group]) -> list[list[float | None]]:
    """Per group and completion, the mean over its tokens.

    None where nobody scored, and in groups behind those of the batch: they were sampled, but are not trained on.
    """
    total = segment_sum(batch.advantages.double(), batch.row_of_token, batch.num_rows)
    values = iter((total / batch.lens).tolist())
    of_group = [[(member, next(values, None)) for member in group.members] for group in groups]
    return [[None if member.total is None else value for member, value in pairs] for pairs in of_group]


def is_correct(member: Scored) -> bool:
    """By the reward called accuracy, or else by a positive total."""
    if "accuracy" in member.rewards:
        return member.rewards["accuracy"] == 1
    return (member.total or 0.0) > 0


def with_positive_nll(batch: TokenBatch, correct: Tensor, coef: float) -> TokenBatch:
    """Add coef * the mean negative log-likelihood of the tokens of the ``correct`` [R] rows (VAPO, 2504.05118).

    Its denominator are those tokens only, of the optimizer step that ``batch`` is.
    """
    chosen = batch.mask * correct.repeat_interleave(batch.lens)
    return batch.with_fields(nll_weights=coef * chosen / chosen.sum().clamp(min=1))


def corrected(batch: TokenBatch, correction: Correction | None) -> tuple[TokenBatch, Metrics]:
    """The advantages times the importance weight of the trainer's log-probs against the engine's."""
    if correction is None or batch.num_rows == 0:
        return batch, {}
    assert batch.old_logprobs is not None
    factor, metrics = importance_weights(
        batch.old_logprobs - batch.rollout_logprobs,
        batch.mask,
        batch.row_of_token,
        batch.num_rows,
        correction.mode,
        correction.low,
        correction.high,
    )
    return batch.with_fields(advantages=batch.advantages * factor), metrics


def select_tokens(
    batch: TokenBatch, logp: Tensor, entropy: Tensor, settings: CreditSettings, on_policy: bool, seed: int
) -> TokenBatch:
    """Leave out tokens of low entropy and mark those that the loss treats apart.

    ``logp`` and ``entropy`` [N]: of the policy before the optimizer step that ``batch`` is.
    """
    marked = None
    if settings.marks is not None:
        inputs = LossInputs(
            logp=logp.masked_fill(batch.mask == 0, 0.0),
            old_logp=None if on_policy else batch.old_logprobs,
            advantages=batch.advantages.masked_fill(batch.mask == 0, 0.0),
            mask=batch.mask,
            row_of_token=batch.row_of_token,
            num_rows=batch.num_rows,
        )
        marked = settings.marks(inputs, seed)
    kept = top_entropy(entropy, batch.mask, settings.top_entropy_quantile)
    return batch.with_fields(advantages=batch.advantages * kept, marked=marked)
