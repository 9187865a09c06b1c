"""The clipped surrogate of PPO on token ratios, shared by GRPO, DAPO, Dr. GRPO and BNPO.

Per token, with the ratio r = pi / pi_old and the advantage A:

    loss = -min(r * A, clip(r, 1 - epsilon, 1 + epsilon_high) * A)

Sources: PPO arXiv 1707.06347, GRPO 2402.03300, the asymmetric range ("clip-higher") DAPO 2503.14476, the upper bound on
r for negative A two-sided clipping 2505.07291 (= dual-clip PPO 1912.09729).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from covey.algo.losses.base import LossInputs
from covey.algo.metrics import Metrics, token_mean
from covey.algo.ratio import log_ratio


@dataclass(frozen=True, slots=True)
class ClipParams:
    """Clip range of the ratio. Raises ValueError on a range that makes no sense."""

    epsilon: float = 0.2
    """The ratio is clipped below at 1 - epsilon."""
    epsilon_high: float | None = None
    """The ratio is clipped above at 1 + epsilon_high; None: epsilon."""
    delta: float | None = None
    """Largest ratio for negative advantages, which are unbounded otherwise; None: no bound."""

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < 1:
            raise ValueError(f"epsilon must be between 0 and 1, got {self.epsilon}")
        if self.epsilon_high is not None and not self.epsilon_high > 0:
            raise ValueError(f"epsilon_high must be positive, got {self.epsilon_high}")
        if self.delta is not None and not self.delta > self.upper:
            raise ValueError(f"delta must be larger than 1 + epsilon_high = {self.upper}, got {self.delta}")

    @property
    def lower(self) -> float:
        return 1 - self.epsilon

    @property
    def upper(self) -> float:
        return 1 + (self.epsilon if self.epsilon_high is None else self.epsilon_high)


def clipped_policy_loss(inputs: LossInputs, params: ClipParams) -> tuple[Tensor, Metrics]:
    """Token terms [N], to be minimised.

    On-policy (``old_logp`` None) r is 1: the value is -A, nothing is clipped, and the gradient is the plain policy
    gradient; a loss near 0 that does not move is then normal.
    """
    ratio = log_ratio(inputs.logp, inputs.old_logp).exp()
    bounded = ratio if params.delta is None else ratio.clamp(max=params.delta)
    clipped = ratio.clamp(params.lower, params.upper)
    loss = -torch.minimum(bounded * inputs.advantages, clipped * inputs.advantages)
    return loss, _clip_metrics(ratio, inputs.advantages, inputs.mask, params)


def _clip_metrics(ratio: Tensor, advantages: Tensor, mask: Tensor, params: ClipParams) -> Metrics:
    """How much the clip did.

    ``clip_ratio`` is the share of trained tokens from which it takes the gradient, on either side; ``ratio/deviation``
    is the mean of abs(ratio - 1), 0 exactly when every ratio is 1.
    """
    low = (advantages < 0) & (ratio < params.lower)
    high = (advantages > 0) & (ratio > params.upper)
    if params.delta is not None:
        high |= (advantages < 0) & (ratio > params.delta)
    return {
        "clip_ratio": token_mean((low | high).to(ratio.dtype), mask),
        "clip_ratio/low": token_mean(low.to(ratio.dtype), mask),
        "clip_ratio/high": token_mean(high.to(ratio.dtype), mask),
        "ratio/mean": token_mean(ratio, mask),
        "ratio/deviation": token_mean((ratio - 1).abs(), mask),
    }
