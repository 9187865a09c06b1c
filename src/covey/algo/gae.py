"""Generalised advantage estimation over the tokens of a completion, and the loss of the critic.

Sources: GAE arXiv 1506.02438, PPO 1707.06347, VAPO 2504.05118 (decoupled and length-adaptive lambda).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.algo.metrics import Metrics, token_mean
from covey.algo.segments import row_index

if TYPE_CHECKING:
    from torch import Tensor

    from covey.tensors import TokenBatch


def token_rewards(scores: Tensor, kl: Tensor | None, lens: Tensor) -> Tensor:
    """[N]: the score [R] of a completion on its last token, minus the (weighted) KL [N] of every token."""
    rewards = scores.new_zeros(int(lens.sum())) if kl is None else -kl.to(scores.dtype)
    return rewards.index_add(0, lens.cumsum(0) - 1, scores)


def adaptive_lambda(lens: Tensor, alpha: float) -> Tensor:
    """[R]: 1 - 1 / (alpha * length), at least 0 (VAPO): a long completion needs a lambda nearer to 1."""
    return (1 - 1 / (alpha * lens.double())).clamp(min=0)


def gae(rewards: Tensor, values: Tensor, lens: Tensor, gamma: float, lam: Tensor | float) -> Tensor:
    """Advantages [N] from token rewards [N] and values [N]; ``lam`` one number or one per row [R].

    delta_t = r_t + gamma V_{t+1} - V_t, A_t = delta_t + gamma lam A_{t+1}; after the last token V and A are 0.
    """
    row = row_index(lens)
    starts = lens.cumsum(0) - lens
    longest = int(lens.max())
    place = row * longest + (rewards.new_ones(row.numel()).long().cumsum(0) - 1) - starts[row]

    def padded(flat: Tensor) -> Tensor:
        return flat.new_zeros(lens.numel() * longest).index_copy(0, place, flat).view(lens.numel(), longest)

    r, v = padded(rewards), padded(values)
    ahead = v.new_zeros(lens.numel())
    out = v.new_zeros(v.shape)
    after = v.new_zeros(lens.numel())
    for t in range(longest - 1, -1, -1):
        delta = r[:, t] + gamma * after - v[:, t]
        ahead = delta + gamma * lam * ahead
        out[:, t] = ahead
        after = v[:, t]
    return out.flatten()[place]


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip: float, mask: Tensor
) -> tuple[Tensor, Metrics]:
    """Token terms [N]: half the larger squared error of the value and of the value clipped around its old one."""
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    plain, bounded = (values - returns).square(), (clipped - returns).square()
    return plain.maximum(bounded) / 2, {
        "value/mean": token_mean(values, mask),
        "value/error": token_mean(plain, mask),
        "value/clip_ratio": token_mean((bounded > plain).to(mask.dtype), mask),
    }


@dataclass(frozen=True, slots=True)
class ValueObjective:
    """``loss, metrics = objective(batch, values)`` of the critic; reads ``old_values`` and ``returns`` of the batch."""

    clip: float

    def __call__(self, batch: TokenBatch, values: Tensor) -> tuple[Tensor, Metrics]:
        """The share of these tokens in the loss of the step; ``values`` [N] with gradient."""
        if batch.old_values is None or batch.returns is None:
            raise ValueError("old_values or returns are missing")
        loss, metrics = value_loss(values, batch.old_values, batch.returns, self.clip, batch.mask)
        return (batch.weights * loss).sum(), metrics
